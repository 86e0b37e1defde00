"""Smoke versions of the studies in runs/: every script of a learning claim runs through at small sizes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from offbeat.market.learners.sessions import SessionSettings

RUNS = Path(__file__).resolve().parents[3] / "runs"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, RUNS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_calvano_small(tmp_path: Path) -> None:
    """Fast decay of exploration: far from the published setting, but gains lie above competition and the file
    resumes.
    """
    module = script("market_calvano")
    settings = SessionSettings(beta=2e-4, stable=5000)
    sessions, _ = module.play(tmp_path, 2, settings, [0, 1, 2])
    found = module.measure(sessions, 2)
    assert found["converged"] == 3
    assert 0 < found["delta"] < 1
    shares = [found[name] for name in ("constant symmetric", "constant asymmetric", "2-cycle", "longer cycle")]
    assert sum(shares) == pytest.approx(1)
    again, _ = module.play(tmp_path, 2, settings, [0, 1, 2])
    np.testing.assert_array_equal(again.q, sessions.q)


def test_controls_small() -> None:
    module = script("market_sessions")
    impatient = SessionSettings(beta=1e-3, stable=3000, discount=0.0, memory=0)
    assert module.gains(2, impatient, 3, 200_000)[0].shape == (3,)
    competed, settled = module.cheapest_sells(counterfactual=True, explores=False, sessions=3, most=10**6)
    assert (competed.tolist(), settled) == ([2.1, 2.1, 2.1], "3 of 3 settled")
    designed, _ = module.cheapest_sells(counterfactual=False, explores=False, sessions=3, most=10**6)
    assert designed.min() > 4
    found = module.klein(6, 3, periods=4000)
    assert 0 < found["profit per firm"] <= found["joint maximum per firm"] + 1e-12
    assert found["share at one price"] + found["share cycling"] == pytest.approx(1)


def test_learners_small(tmp_path: Path) -> None:
    module = script("market_learners")
    small = ["run.events=48", "run.windows=2", "run.seeds=2", "run.parts=1", "run.warmup=4", "learner.hidden=[4]"]
    results = {}
    for study, variants in module.STUDIES.items():
        name, overrides = next(iter(variants.items()))
        overrides = [o for o in overrides if "hidden" not in o and "warmup" not in o]
        results[name] = module.play(tmp_path / study, [*overrides, *small, "learner.batch=4"])
    assert len(module.table("small", results).splitlines()) >= 1 + len(module.STUDIES)
