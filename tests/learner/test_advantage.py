"""Zero-sum: what one sibling gains the others lose; equal rewards say nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.errors import InvariantError
from offbeat.learner.advantage import EPSILON, group_advantages, is_degenerate
from tests.reference import advantage as oracle

rewards_of_a_group = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=2, max_size=16)


@given(rewards_of_a_group, st.booleans())
def test_agrees_with_the_formula(rewards: list[float], normalise: bool) -> None:
    expected = oracle.advantages(rewards, normalise, EPSILON)
    assert group_advantages(rewards, normalise) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(rewards_of_a_group, st.booleans())
def test_advantages_of_a_group_sum_to_zero(rewards: list[float], normalise: bool) -> None:
    assert math.fsum(group_advantages(rewards, normalise)) == pytest.approx(0, abs=1e-6)


@given(st.floats(-1e6, 1e6), st.integers(1, 20), st.booleans())
def test_equal_rewards_give_exactly_zero(reward: float, size: int, normalise: bool) -> None:
    assert group_advantages([reward] * size, normalise) == [0.0] * size
    assert is_degenerate([reward] * size)


def test_known_values() -> None:
    assert group_advantages([1, 0, 0, 1], normalise=False) == [0.5, -0.5, -0.5, 0.5]
    assert group_advantages([1, 0])[0] == pytest.approx(0.5 / math.sqrt(0.5), rel=1e-5)
    assert not is_degenerate([1, 0])


@pytest.mark.parametrize("rewards", [[], [1.0, math.nan], [math.inf, 0.0]])
def test_unusable_rewards_are_refused(rewards: list[float]) -> None:
    with pytest.raises(InvariantError):
        group_advantages(rewards)
