"""A run on vLLM is refused before anything is written where vLLM's environment is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from offbeat import wire
from offbeat.backends.local import python_of
from offbeat.backends.vllm.interpreter import VARIABLE, interpreters
from offbeat.errors import SettingsError
from offbeat.settings import load_settings

ON_VLLM = ["rollout.engine=vllm", "schedule.max_versions=1"]


def test_the_local_engine_needs_no_other_python() -> None:
    assert interpreters(load_settings(None).rollout) == {}
    assert python_of("offbeat.cli", None) == [sys.executable, "-m", "offbeat.cli"]


@pytest.mark.parametrize(
    ("python", "words"),
    [("nowhere/python", "no Python there"), ("/", "no Python there"), ("/bin/false", "without vLLM")],
)
def test_a_python_that_is_none_is_named(
    python: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    settings = load_settings(None, [*ON_VLLM, f"rollout.vllm_python={python}"])
    with pytest.raises(SettingsError, match=f"rollout.vllm_python = {python}: .*{words}.*make vllm"):
        wire.start(tmp_path / "run", settings, lambda note, share: None)
    assert not list(tmp_path.iterdir())


def test_the_variable_goes_before_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/python")
    with pytest.raises(SettingsError, match=f"{VARIABLE} = /nowhere/python"):
        interpreters(load_settings(None, ON_VLLM).rollout)
