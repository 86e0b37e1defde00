"""The test bed has the stability limit that its theory gives, by roots and by simulation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.theory.quadratic import DelayedQuadratic, exact_limit
from offbeat.theory.refresh import lag_at
from tests.reference.delayed_quadratic import spectral_radius


@given(st.integers(0, 40), st.floats(0.3, 0.999))
def test_exact_limit_is_where_the_roots_leave_the_unit_circle(lag: int, share: float) -> None:
    assert spectral_radius(share * exact_limit(lag), lag) < 1.0
    assert spectral_radius((2.0 - share) * exact_limit(lag), lag) > 1.0


@pytest.mark.parametrize("lag", [0, 1, 2, 5, 16])
def test_simulation_dies_out_below_the_limit_and_grows_above_it(lag: int) -> None:
    for share, stable in ((0.9, True), (1.1, False)):
        bed = DelayedQuadratic((1.0,), lag)
        eta = share * exact_limit(lag)
        for _ in range(600 * (lag + 1)):
            bed.move([-eta * g for g in bed.gradient()])
            if bed.loss > 1e9:
                break
        assert (bed.loss < 1e-3) is stable


@given(st.integers(0, 64), st.integers(0, 500))
def test_staleness_is_the_most_lag_and_no_lag_is_older_than_the_start(staleness: int, step: int) -> None:
    fixed, cyclic = lag_at(step, staleness, "fixed-lag"), lag_at(step, staleness, "cyclic")
    assert fixed == min(step, staleness)
    assert 0 <= cyclic <= min(step, staleness)
    assert lag_at(step + staleness + 1, staleness, "cyclic") == cyclic


def test_behaviour_is_the_policy_of_the_lag() -> None:
    for refresh in ("fixed-lag", "cyclic"):
        bed = DelayedQuadratic((1.0, 0.5), 3, refresh, noise=0.1)
        past = []
        for step in range(20):
            past.append(list(bed.x))
            assert bed.behaviour() == past[step - lag_at(step, 3, refresh)]
            bed.move([-0.1 * g for g in bed.gradient()])


def test_seed_fixes_the_noise() -> None:
    beds = [DelayedQuadratic((1.0,), 2, noise=1.0, seed=seed) for seed in (1, 1, 2)]
    first, again, other = ([bed.gradient() for _ in range(5)] for bed in beds)
    assert first == again != other
