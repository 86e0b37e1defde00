"""Estimators and planner, first on the delayed quadratic, whose edge is known."""

from __future__ import annotations

import math

import pytest

from offbeat.eventtime.draws import Draws
from offbeat.theory.pilot import PilotStep, batch_radius, critical_drift, drift_law, estimate
from offbeat.theory.planner import margins, plan
from offbeat.theory.quadratic import DelayedQuadratic, exact_limit

LEVEL = math.pi / 2
"""Mismatch at which the quadratic loses its footing: s eta lambda = pi / 2 for large s."""


def pilot(lag: int, eta: float, steps: int = 64) -> list[PilotStep]:
    """A safe run on many coordinates that hardly move: mismatch is the relative bias of its gradient."""
    bed = DelayedQuadratic((1.0,) * 4, lag)
    start, found = list(bed.x), []
    for _ in range(steps):
        behaviour, before = list(bed.behaviour()), list(bed.x)
        bed.move([-eta * g for g in bed.gradient()])
        size = math.hypot(*before)
        distance = math.dist(before, behaviour)
        found.append(
            PilotStep(
                eta, math.dist(before, bed.x) / size, distance / size, distance / size, math.dist(bed.x, start), 1.0
            )
        )
    return found


@pytest.mark.parametrize("lag", [1, 2, 4])
@pytest.mark.parametrize("asked", [2, 4, 8, 16, 32])
def test_planner_finds_the_exact_limit_of_the_delayed_quadratic(lag: int, asked: int) -> None:
    """From one pilot at a tenth of its own limit. At S = 2 the law's 1 / S and the exact limit differ by a fifth."""
    found = plan(estimate(pilot(lag, 0.1 * exact_limit(lag)), LEVEL), asked, 10)
    assert found.binding == "staleness"
    assert found.eta_max == pytest.approx(exact_limit(asked), rel=0.35)
    assert found.interval.low <= found.eta_max <= found.interval.high


def synthetic(
    eta: float = 1e-3,
    g_upd: float = 3.0,
    slope: float = 2.0,
    lag: int = 2,
    steps: int = 80,
    collapsed: int | None = None,
):
    draws = Draws(7)
    found, drift = [], 0.0
    for t in range(steps):
        update = eta * g_upd * math.exp(0.05 * draws.normal())
        drift += update
        distance = min(t, lag) * eta * g_upd
        mismatch = distance * slope * math.exp(0.1 * draws.normal())
        reward = 0.0 if collapsed is not None and t >= collapsed else 0.5
        found.append(PilotStep(eta, update, distance, mismatch, drift, reward))
    return found


def test_estimates_recover_what_made_the_steps() -> None:
    found = estimate(synthetic(), level=0.2)
    assert found.g_upd == pytest.approx(3.0, rel=0.03)
    assert found.g_upd_interval.holds(3.0)
    assert found.r_batch == pytest.approx(0.1, rel=0.05)
    assert found.r_batch_interval.holds(found.r_batch)
    assert found.reach.exponent == pytest.approx(1.0, abs=0.02)
    assert found.reach(80) == pytest.approx(80, rel=0.1)
    assert not found.r_crit_seen
    assert found.r_crit_interval.high == math.inf


def test_a_collapsed_pilot_gives_the_horizon_limit() -> None:
    found = estimate(synthetic(collapsed=50), level=0.2)
    assert found.r_crit_seen
    assert found.r_crit == pytest.approx(55 * 3e-3, rel=0.1)
    answer = plan(found, staleness=1, steps=1000)
    assert answer.binding == "horizon"
    assert answer.eta_max == pytest.approx(found.r_crit / (1000 * found.g_upd), rel=0.1)


def test_an_unseen_horizon_is_a_bound_and_not_the_edge() -> None:
    found = estimate(synthetic(), level=0.2)
    answer = plan(found, staleness=2, steps=10_000)
    assert answer.binding == "staleness"
    assert answer.eta_max == answer.limit.staleness_limit
    assert answer.interval.low <= answer.limit.horizon_limit < answer.eta_max
    at_zero = plan(found, staleness=0, steps=80)
    assert at_zero.binding == "horizon"
    assert at_zero.eta_max == pytest.approx(found.eta, rel=0.1), "as far as the pilot went, its own rate is safe"


def test_plan_as_json_has_no_infinity() -> None:
    values = plan(estimate(synthetic(), level=0.2), 0, 80).to_json()
    assert values["staleness_limit"] is None
    assert values["r_crit_interval"][1] is None
    assert {
        "eta_max",
        "binding",
        "r_batch",
        "r_crit",
        "g_upd",
        "staleness",
        "steps",
        "margin",
        "interval",
    } <= values.keys()


def test_drift_law_tells_a_walk_from_a_line() -> None:
    def steps(exponent: float) -> list[PilotStep]:
        return [PilotStep(1e-3, 1e-3, None, None, 1e-3 * (t + 1) ** exponent, 1.0) for t in range(100)]

    assert drift_law(steps(0.5), 1e-3).exponent == pytest.approx(0.5, abs=0.01)
    assert drift_law(steps(1.0), 1e-3)(500) == pytest.approx(500, rel=0.02)
    unknown = drift_law([PilotStep(1e-3, 1e-3, None, None, None, 1.0)] * 50, 1e-3)
    assert unknown(500) == 500


def test_what_is_missing_is_said() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        estimate(synthetic(steps=10), 0.2)
    on_policy = [PilotStep(1e-3, 1e-3, 0.0, 0.0, 1e-3, 1.0)] * 20
    with pytest.raises(ValueError, match="staleness of 1"):
        batch_radius(on_policy, 0.2)
    assert critical_drift(on_policy)[2] is False


def test_map_falls_with_staleness_and_with_rate() -> None:
    found = margins(estimate(synthetic(), 0.2), [1, 2, 4], [1e-4, 2e-4], 100)
    assert found[0][0] == pytest.approx(2 * found[0][1]) == pytest.approx(2 * found[1][0])
