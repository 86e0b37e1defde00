"""`runs/soak.py` sees every process of a run, wherever it descends from."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from offbeat.backends.forking import PLACES

from .conftest import Trial, kill, noise

SCRIPT = Path(__file__).resolve().parents[2] / "runs/soak.py"


def test_every_process_of_a_run_is_watched(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that has loaded its libraries itself: other tests share theirs."""
    monkeypatch.delenv(PLACES, raising=False)
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    soak = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(soak)
    process = trial.begin(*noise(trial))
    trial.wait_for_version(1, process)
    seen = soak.family(process.pid)
    kill(process)
    assert seen.keys() >= soak.WATCHED
    assert all(size > 1 << 20 and count > 3 for size, count in seen.values())
