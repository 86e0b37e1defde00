"""The rate of an update: effective sample size, its scale, and the age of what it learns from."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.learner.rates import effective_sample_size, ess_scale, staleness_scale

LOG_RATIOS = st.lists(st.floats(-30, 30), min_size=1, max_size=40)


@given(LOG_RATIOS)
def test_effective_sample_size_is_its_formula(log_ratios: list[float]) -> None:
    weights = [math.exp(ratio) for ratio in log_ratios]
    expected = sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights))
    assert effective_sample_size(log_ratios) == pytest.approx(expected, rel=1e-9)


@given(LOG_RATIOS, st.floats(-2000, 2000))
def test_effective_sample_size_knows_only_proportions_and_stays_within_its_range(
    log_ratios: list[float], shift: float
) -> None:
    ess = effective_sample_size([ratio + shift for ratio in log_ratios])
    assert ess == pytest.approx(effective_sample_size(log_ratios), rel=1e-6)
    assert 1 / len(log_ratios) * (1 - 1e-9) <= ess <= 1 + 1e-9


def test_extremes() -> None:
    assert effective_sample_size([0.3] * 7) == pytest.approx(1)
    assert effective_sample_size([0.0, -math.inf]) == 0.5
    assert effective_sample_size([math.inf, 0.0]) == effective_sample_size([math.nan, 0.0]) == 0.5
    assert effective_sample_size([]) == effective_sample_size([-math.inf]) == 1.0
    assert [ess_scale(ess, 0.5) for ess in (0.125, 0.5, 1.0)] == [0.5, 1.0, 1.0]
    assert [staleness_scale(age) for age in (0.0, 0.5, 1.0, 4.0)] == [1.0, 1.0, 1.0, 0.25]
