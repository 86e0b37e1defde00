"""The laws: each formula against the words of docs/stability.md."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.eventtime.draws import Draws
from offbeat.theory.laws import (
    Reach,
    bias_bound,
    collapse_steps,
    correlated_reach,
    horizon_limit,
    staleness_limit,
    two_constraints,
)

positive = st.floats(1e-3, 1e3)


@given(positive, positive, positive, st.integers(1, 64), st.integers(1, 10_000))
def test_two_constraints_is_the_smaller_of_both_and_names_it(r_batch, r_crit, g_upd, staleness, steps) -> None:
    found = two_constraints(r_batch, r_crit, g_upd, staleness, float(steps))
    expected = min(r_batch / (staleness * g_upd), r_crit / (steps * g_upd))
    assert found.eta_max == pytest.approx(expected)
    assert found.binding == ("staleness" if r_batch / staleness < r_crit / steps else "horizon")


@given(positive, positive, st.integers(1, 32))
def test_staleness_limit_falls_as_one_over_s_and_horizon_limit_does_not(r, g_upd, staleness) -> None:
    assert staleness_limit(r, g_upd, 2 * staleness) == pytest.approx(staleness_limit(r, g_upd, staleness) / 2)
    assert staleness_limit(r, g_upd, 0) == math.inf
    assert collapse_steps(r, g_upd, 2.0) == pytest.approx(collapse_steps(r, g_upd, 1.0) / 2)
    assert horizon_limit(r, g_upd, collapse_steps(r, g_upd, 0.01)) == pytest.approx(0.01)


def test_bias_bound_is_linear_in_staleness_and_in_rate() -> None:
    assert bias_bound(2.0, 3.0, 4.0, 5.0) == 120.0


def test_reach_of_a_straight_line_and_of_a_random_walk() -> None:
    assert Reach()(100) == 100
    assert Reach(exponent=0.5)(100) == 10
    assert correlated_reach(50, [1.0] * 49) == pytest.approx(50)
    assert correlated_reach(50, []) == pytest.approx(math.sqrt(50))


def test_correlated_reach_is_the_mean_square_of_a_simulated_walk() -> None:
    """An AR(1) walk with coefficient rho: its steps have correlation rho^k at lag k."""
    rho, steps, draws, squares = 0.7, 40, Draws(3), []
    for _ in range(4000):
        step, place = draws.normal(), 0.0
        for _ in range(steps):
            place += step
            step = rho * step + math.sqrt(1 - rho * rho) * draws.normal()
        squares.append(place * place)
    expected = correlated_reach(steps, [rho**k for k in range(1, steps)]) ** 2
    assert sum(squares) / len(squares) == pytest.approx(expected, rel=0.1)
