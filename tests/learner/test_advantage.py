"""Zero-sum: what one sibling gains the others lose; equal rewards say nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.errors import InvariantError
from offbeat.learner.advantage import EPSILON, group_advantages
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
    for baseline in ("leave-one-out", "opo"):
        assert group_advantages([reward] * size, False, baseline, range(1, size + 1)) == [0.0] * size  # type: ignore[arg-type]


def test_known_values() -> None:
    assert group_advantages([1, 0, 0, 1], normalise=False) == [0.5, -0.5, -0.5, 0.5]
    assert group_advantages([1, 0])[0] == pytest.approx(0.5 / math.sqrt(0.5), rel=1e-5)
    assert group_advantages([1, 0, 0, 1], False, "leave-one-out") == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert group_advantages([1, 0], False, "opo", [3, 1]) == [0.25, -0.75]
    assert group_advantages([1, 1, 0], False, "none") == [1.0, 1.0, 0.0]


@given(rewards_of_a_group, st.data())
def test_baselines_agree_with_their_formulas(rewards: list[float], data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 99), min_size=len(rewards), max_size=len(rewards)))
    for i, reward in enumerate(rewards):
        others = rewards[:i] + rewards[i + 1 :]
        expected = {
            "leave-one-out": reward - sum(others) / len(others),
            "opo": reward - sum(n * r for n, r in zip(lengths, rewards, strict=True)) / sum(lengths),
            "none": reward,
        }
        for baseline, value in expected.items():
            found = group_advantages(rewards, False, baseline, lengths)  # type: ignore[arg-type]
            assert found[i] == pytest.approx(value, rel=1e-9, abs=1e-9), baseline


def test_opo_without_lengths_is_refused() -> None:
    for lengths in (None, [1], [1, 0]):
        with pytest.raises(InvariantError, match="OPO"):
            group_advantages([1.0, 0.0], False, "opo", lengths)


@pytest.mark.parametrize("rewards", [[], [1.0, math.nan], [math.inf, 0.0]])
def test_unusable_rewards_are_refused(rewards: list[float]) -> None:
    with pytest.raises(InvariantError):
        group_advantages(rewards)
