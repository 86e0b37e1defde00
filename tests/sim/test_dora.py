"""DORA's published step times (arXiv 2604.26256v1, section 5.2) within the bands that docs/simulator.md promises.

Calibrated on the synchronous rows only. The bands that are missed are in the docs with what they hang on; here stand
those that hold, so that a change of scheduler or simulator that loses one is noticed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from offbeat.sim.cluster import changed, load_cluster
from offbeat.sim.simulate import simulate

pytestmark = pytest.mark.xdist_group("dora")
"""They share what they simulate."""


@cache
def simulated(schedule: str, accelerators: int) -> Any:
    iterations = 14 if schedule == "multi-version" else 7
    run = {"iterations": iterations, "warmup": 4 if iterations > 7 else 2}
    return simulate(changed(load_cluster(f"dora-{accelerators}"), run=run), schedule).result


@pytest.mark.parametrize(("accelerators", "minutes"), [(64, 14.89), (128, 14.77)])
def test_c1_rollout_of_sync(accelerators: int, minutes: float) -> None:
    assert simulated("sync", accelerators)["rollout_only_minutes"] == pytest.approx(minutes, rel=0.03)


@pytest.mark.parametrize(
    ("schedule", "accelerators", "minutes", "band"),
    [
        ("sync", 64, 22.91, 0.03),
        ("sync", 128, 20.23, 0.03),
        ("one-step-off", 128, 14.02, 0.10),
        ("partial", 64, 17.38, 0.15),
        ("partial", 128, 13.95, 0.15),
        ("multi-version", 64, 14.67, 0.10),
        ("multi-version", 128, 10.46, 0.10),
    ],
)
def test_c2_c3_c4_step_times(schedule: str, accelerators: int, minutes: float, band: float) -> None:
    assert simulated(schedule, accelerators)["step_minutes"] == pytest.approx(minutes, rel=band)


def test_c5_speedups_and_their_order() -> None:
    for accelerators, published in ((64, 1.56), (128, 1.93)):
        steps = {s: simulated(s, accelerators)["step_minutes"] for s in ("sync", "partial", "multi-version")}
        assert steps["sync"] > steps["partial"] > steps["multi-version"]
        assert steps["sync"] / steps["multi-version"] == pytest.approx(published, rel=0.15)


@pytest.mark.parametrize(("schedule", "published"), [("sync", 1.13), ("multi-version", 1.40)])
def test_c6_scaling_from_64_to_128(schedule: str, published: float) -> None:
    ratio = simulated(schedule, 64)["step_minutes"] / simulated(schedule, 128)["step_minutes"]
    assert ratio == pytest.approx(published, abs=0.1)


def test_c8_most_of_what_is_trained_on_is_one_version_old() -> None:
    for accelerators in (64, 128):
        mix = simulated("multi-version", accelerators)["staleness_histogram"]
        assert max(mix, key=mix.get) == "1"
        assert simulated("multi-version", accelerators)["staleness_max"] <= 3
