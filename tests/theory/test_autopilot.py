"""The autopilot on the delayed quadratic and on traces: it stays inside, moves seldom, and is a fold."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.theory.autopilot import (
    AutopilotSettings,
    Decision,
    Reading,
    advance,
    begin,
    fold,
    pressure_of,
    projection_share,
)
from offbeat.theory.quadratic import DelayedQuadratic, exact_limit
from tests.theory.make_traces import TRACES

CURVATURES = (1.0, 0.7, 0.4, 0.2)
SETTINGS = AutopilotSettings(level=1.0, alarm=None, settle=24, most_staleness=12, least_staleness=1)


def cosine(a: list[float], b: list[float]) -> float | None:
    size = math.hypot(*a) * math.hypot(*b)
    return sum(x * y for x, y in zip(a, b, strict=True)) / size if size else None


def projected(gradient: list[float], past: list[float] | None, cap: float) -> list[float]:
    """`cap`: what is left of the gradient has at most this cosine with the one before."""
    c = cosine(gradient, past) if past else None
    if c is None or c <= cap:
        return gradient
    assert past is not None
    alpha = cap * math.sqrt(max(0.0, 1 - c * c)) / (c * math.sqrt(1 - cap * cap)) if cap < 1 else 1.0
    share = (1 - alpha) * c * math.hypot(*gradient) / math.hypot(*past)
    return [g - share * p for g, p in zip(gradient, past, strict=True)]


def fly(eta: float, lag: int, piloted: bool, steps: int = 1500) -> tuple[float, list[Decision], list[Reading]]:
    """Run the test bed; the final loss (infinite where it blew up), the decisions and the trace."""
    bed = DelayedQuadratic(CURVATURES, lag, noise=0.01, seed=3)
    state, past, decisions, trace = begin(SETTINGS), None, [], []
    for _ in range(steps):
        gradient, behaviour = bed.gradient(), list(bed.behaviour())
        levers = state.levers
        update = projected(gradient, past, levers.cap(0.05)) if piloted else gradient
        fresh = [c * v for c, v in zip(CURVATURES, bed.x, strict=True)]
        stale = [c * v for c, v in zip(CURVATURES, behaviour, strict=True)]
        mismatch = math.dist(fresh, stale) / (math.hypot(*fresh) + 0.05)
        trace.append(Reading(mismatch, cosine(gradient, past) if past else None))
        past = gradient
        bed.move([-eta * (levers.rate if piloted else 1.0) * g for g in update])
        if bed.loss > 1e6:
            return math.inf, decisions, trace
        state, decision = advance(state, trace[-1], SETTINGS)
        if decision is not None and piloted:
            decisions.append(decision)
            bed.set_staleness(state.levers.staleness)
    return bed.loss, decisions, trace


@pytest.mark.parametrize("beyond", [1.3, 2.0, 4.0])
def test_autopilot_keeps_the_delayed_quadratic_inside_where_it_would_blow_up(beyond: float) -> None:
    eta = beyond * exact_limit(12)
    assert fly(eta, 12, piloted=False)[0] == math.inf
    loss, decisions, _ = fly(eta, 12, piloted=True)
    assert loss < 0.1
    assert decisions


def test_autopilot_leaves_a_run_well_inside_alone() -> None:
    loss, decisions, _ = fly(0.1 * exact_limit(12), 12, piloted=True)
    assert loss < 0.1
    assert decisions == []


def test_levers_are_pulled_in_order_of_cost_and_let_go_projection_first() -> None:
    hot, cold = Reading(1.5, 0.9), Reading(0.0, 0.0)
    settings = AutopilotSettings(level=1.0, settle=4, window=4, patience=8, most_staleness=8)
    state, found = fold([hot] * 60, settings)
    assert [d.lever for d in found] == ["projection"] * 2 + ["learning rate"] * 2 + ["staleness"] * 3
    assert (state.levers.strength, state.levers.rate, state.levers.staleness) == (1.0, 1 / 16, 1)
    _, found = fold([hot] * 60 + [cold] * 200, settings)
    released = [d.lever for d in found if d.reason.count("below")]
    assert released == ["projection"] * 2 + ["staleness"] * 3 + ["learning rate"] * 4


def test_projection_is_passed_over_where_gradients_are_not_aligned() -> None:
    settings = AutopilotSettings(level=1.0, settle=4, window=4)
    _, found = fold([Reading(5.0, 0.0)] * 10, settings)
    assert found[0].lever == "learning rate"


def test_projection_is_passed_over_where_it_would_not_suffice() -> None:
    """Half of the pressure must go; without alignment steps come 0.82 times as far at a cosine of 0.2, 0.33 at 0.8."""
    settings = AutopilotSettings(level=1.0, alarm=None, settle=4, window=4)
    assert [fold([Reading(1.6, c)] * 5, settings)[1][0].lever for c in (0.2, 0.8)] == ["learning rate", "projection"]
    assert projection_share(0.8) == pytest.approx(1 / 3)
    assert projection_share(-0.5) == 1.0


@pytest.mark.parametrize(("pressure", "rate"), [(0.9, 0.5), (1.7, 0.25), (3.3, 0.125), (1e9, 1 / 16)])
def test_the_rate_falls_at_once_by_as_many_halves_as_the_pressure_asks_for(pressure: float, rate: float) -> None:
    state, _ = fold([Reading(pressure, None)] * 8, AutopilotSettings(level=1.0))
    assert state.levers.rate == rate


steps = st.lists(
    st.builds(Reading, st.floats(0, 3), st.none() | st.floats(-1, 1), st.none() | st.floats(0, 3)), max_size=150
)


@given(steps, st.integers(0, 150))
def test_state_is_the_fold_of_the_readings(seen: list[Reading], at: int) -> None:
    """Interrupted anywhere and folded again from the log, the controller goes on as if nothing had happened."""
    settings = AutopilotSettings(level=1.0, r_crit=2.0, settle=3, window=3, patience=5)
    state, decisions = fold(seen, settings)
    again, before = fold(seen[:at], settings)
    for reading in seen[at:]:
        again, decision = advance(again, reading, settings)
        before += [decision] if decision else []
    assert (again, before) == (state, decisions)


@given(steps)
def test_decisions_are_apart_and_every_one_says_why(seen: list[Reading]) -> None:
    settings = AutopilotSettings(level=1.0, r_crit=2.0, settle=5, window=3, patience=6)
    _, decisions = fold(seen, settings)
    for a, b in pairwise(decisions):
        taken_back = "below" in a.reason and "above" in b.reason
        assert b.step - a.step >= (settings.window if taken_back else settings.settle)
    for decision in decisions:
        tight = decision.pressure > settings.high
        assert tight or decision.pressure < settings.low, "between the two pressures nothing moves"
        assert ("above" if tight else "below") in decision.reason
        assert decision.before != decision.after


def test_pressure_names_its_side() -> None:
    settings = AutopilotSettings(level=0.2, r_crit=10.0)
    assert pressure_of((Reading(0.1, 0.1, 1.0),), settings) == (0.5, "staleness")
    assert pressure_of((Reading(0.01, 0.1, 9.0),), settings)[1] == "horizon"
    assert pressure_of((Reading(0.01, 0.45, None),), settings)[1] == "alignment"


@pytest.mark.parametrize(("trace", "levers"), [("K1", []), ("K3", ["learning rate"] * 2)])
def test_on_recorded_traces_it_acts_only_where_the_clip_was_reached(trace: str, levers: list[str]) -> None:
    """Live runs at K = 1 and K = 3: the first stays inside, the second begins at the edge (clip share 4 to 5 %).

    What was recorded does not answer to the lever, so it is pulled again while that beginning lasts."""
    mismatches = json.loads(TRACES.read_text())[trace]
    settings = AutopilotSettings(level=math.log(1.2), most_staleness=3)
    _, decisions = fold([Reading(mismatch, None) for mismatch in mismatches], settings)
    assert [decision.lever for decision in decisions] == levers
    assert all(decision.step < 32 for decision in decisions), "only the beginning was at the edge"


@pytest.mark.parametrize("cap", [0.9, 0.05])
@pytest.mark.parametrize("beyond", [0.5, 2.0, 4.0])
def test_without_noise_projection_holds_the_quadratic_anywhere_and_leads_nowhere(beyond: float, cap: float) -> None:
    """All of a noiseless gradient is aligned with the one before: with it goes the divergence, and the progress."""
    bed, past, losses = DelayedQuadratic(CURVATURES, 12), None, []
    for _ in range(1000):
        gradient = bed.gradient()
        update, past = projected(gradient, past, cap), gradient
        bed.move([-beyond * exact_limit(12) * g for g in update])
        losses.append(bed.loss)
    assert max(losses) < 1.15
    assert losses[-1] > 0.7 * losses[0]
