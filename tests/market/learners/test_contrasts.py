"""Contrasts of finished studies against made-up directories whose differences, slopes and counts are known."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from offbeat.market.learners.runfile import begin, part_file
from offbeat.market.learners.settings import study_from

SCRIPT = Path(__file__).resolve().parents[3] / "runs" / "market_contrasts.py"
Of = Callable[[float, float, int], float]
OWN = {3: 0.9, 4: -0.7, 5: 0.2, 6: 0.5, 7: -0.1}
"""What each seed gains by itself: far more than any effect, so that only pairs show one."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("market_contrasts", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["market_contrasts"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def half(rate: float, lag: float, seed: int) -> float:
    return 0.5


def made(directory: Path, market: dict[str, Any], seeds: range, effect: Of, peak: Of = half, windows: int = 2) -> Path:
    """A directory as if trained: the gain of a run is its seed's own and `effect(rate, latency, seed)`, its largest |Q|
    `peak(rate, latency, seed)` bounds.
    """
    run = {"events": 100, "windows": 2, "seeds": len(seeds), "seed": seeds[0], "parts": 1}
    study = study_from({"market": market, "run": run})
    begin(directory, study, "sweep", [2.0] * len(study.cells))
    benchmark = study.benchmark()
    nash, more = benchmark.nash.profits, benchmark.cartel.profits - benchmark.nash.profits
    asked = [(*study.cells[cell], seed) for cell, seed in study.runs]
    gains = np.array([OWN[seed] + effect(rate, lag, seed) for rate, lag, seed in asked])
    profit = np.tile(nash[:, None] + more[:, None] * gains, (windows, 1, 1))
    worst = np.tile(2.0 * np.array([peak(*one) for one in asked]), (windows, 2, 1))
    trace = {"time": np.ones((windows, len(asked))), "quiet_profit": profit, "profit": profit, "critic_max": worst}
    save_file({f"trace.{name}": values for name, values in trace.items()}, part_file(directory, 0))
    return directory


def test_differences_and_slopes_are_paired_by_seed(script: ModuleType, tmp_path: Path) -> None:
    """Half of what 1 - exp(-latency) is goes; asynchrony adds .125; the seeds differ by far more."""
    made(tmp_path / "sync", {"clock": "common"}, range(3, 8), lambda rate, lag, seed: 0.0)
    lags = {"latencies": [0.0, log(2), log(4)]}
    made(tmp_path / "async", lags, range(3, 8), lambda rate, lag, seed: 0.125 - 0.5 * (1 - exp(-lag)))
    every = [cell for directory in script.directories([tmp_path]) for cell in script.cells(directory)]
    synchronous = list(script.less_synchronous(every))
    assert [found.every.mean for found in synchronous] == pytest.approx([0.125, -0.125, -0.25])
    for found in synchronous:
        assert (found.every.low, found.every.high) == pytest.approx((found.every.mean,) * 2)
        assert found.every.count == 5
        assert found.kept is None
    assert [found.every.mean for found in script.less_first(every, "latency")] == pytest.approx([-0.25, -0.375])
    assert not list(script.less_first(every, "rate"))
    along_latency, along_share = script.slopes(every)
    assert along_share.every.mean == pytest.approx(-0.5)
    assert along_latency.every.mean == pytest.approx(np.polyfit(lags["latencies"], [0.125, -0.125, -0.25], 1)[0])


def test_rates_are_compared_and_slopes_averaged_over_them(script: ModuleType, tmp_path: Path) -> None:
    market = {"rates": [4.0, 1.0], "latencies": [0.0, 1.0, 2.0]}
    made(tmp_path / "grid", market, range(3, 8), lambda rate, lag, seed: 0.1 * rate - 0.05 * rate * lag)
    cells = script.cells(tmp_path / "grid")
    assert [found.every.mean for found in script.less_first(cells, "rate")] == pytest.approx([0.3, 0.15, 0.0])
    slopes = {found.name.removeprefix(f"{tmp_path}/grid "): found.every.mean for found in script.slopes(cells)}
    assert slopes["rate 1: slope along latency"] == pytest.approx(-0.05)
    assert slopes["rate 4: slope along latency"] == pytest.approx(-0.2)
    assert slopes["all rates: slope along latency"] == pytest.approx(-0.125)


def test_another_study_is_met_seed_by_seed_and_cell_by_cell(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only seeds 5 to 7 are in both; cells without a partner are left out, and diverged runs are told apart."""
    late = {"latencies": [0.0, 1.0]}
    made(tmp_path / "a", late, range(3, 8), lambda rate, lag, seed: 0.0)
    made(
        tmp_path / "b",
        {"latencies": [1.0, 2.0], "box": [1.0, 2.0]},
        range(5, 8),
        lambda rate, lag, seed: 0.75 if seed == 6 else 0.25,
        lambda rate, lag, seed: 1.2 if seed == 6 else 0.5,
    )
    script.main([str(tmp_path / "b"), "--than", str(tmp_path / "a")])
    line = [row for row in capsys.readouterr().out.splitlines() if " less " in row and "b poisson" in row]
    assert len(line) == 1
    assert "b poisson rate 1 latency 1 less " in line[0]
    assert "0.417 [" in line[0]
    assert line[0].endswith("(3); without the diverged 0.250 [0.250, 0.250] (2)")


def test_divergence_counts_have_known_p(script: ModuleType, tmp_path: Path) -> None:
    assert script.exact([3, 1], [4, 4]) == pytest.approx(34 / 70)  # Fisher's tea
    assert script.exact([3, 10], [10, 10]) == pytest.approx(2 * 120 / 77520)
    assert script.exact([1, 9], [10, 12]) == pytest.approx((2200 + 66 + 120 + 1) / 646646)  # by hand, groups uneven
    assert script.exact([3, 6, 8, 10], [10] * 4) == pytest.approx(6.05e-4, abs=1e-6)
    assert script.exact([5, 5, 5], [5] * 3) == 1.0
    made(
        tmp_path / "div",
        {"rates": [1.0, 2.0, 5.0]},
        range(3, 8),
        lambda rate, lag, seed: 0.0,
        lambda rate, lag, seed: 3.0 if seed < 2 + rate else 1.05,
    )
    *counts, rise = script.counts(script.cells(tmp_path / "div"))
    assert [count.diverged for count in counts] == [0, 1, 4]
    assert [count.p for count in counts[1:]] == pytest.approx([1.0, 2 * 5 / 210])
    assert counts[0].p is None
    assert [float(count.peaks.mean()) for count in counts] == pytest.approx([1.05, 1.44, 2.61])
    assert rise.diverged == [0, 1, 4]
    assert rise.p == pytest.approx(script.exact([4, 1, 0], [5] * 3))


def test_what_cannot_be_compared_is_refused(script: ModuleType, tmp_path: Path) -> None:
    def nothing(rate: float, lag: float, seed: int) -> float:
        return 0.0

    made(tmp_path / "short" / "run", {}, range(3, 8), nothing, windows=1)
    with pytest.raises(SystemExit, match="1 of 2 windows"):
        script.main([str(tmp_path / "short")])
    (tmp_path / "none").mkdir()
    with pytest.raises(SystemExit, match="no market run"):
        script.main([str(tmp_path / "none")])
    for name, clock in (("one", "common"), ("two", "common"), ("three", "poisson")):
        made(tmp_path / "twice" / name, {"clock": clock}, range(3, 8), nothing)
    with pytest.raises(SystemExit, match="more than one cell"):
        script.main([str(tmp_path / "twice")])
