"""Fits against numpy, intervals against what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from offbeat.eventtime.draws import Draws
from offbeat.theory.fits import (
    blocks,
    bootstrap,
    interquartile_mean,
    median,
    power_law,
    proportion,
    quantile,
    straight_line,
)

numbers = st.lists(st.floats(-100, 100), min_size=3, max_size=20)


@given(numbers, st.integers(0, 1000))
def test_straight_line_is_least_squares(x, seed) -> None:
    assume(max(x) - min(x) > 1e-2)
    draws = Draws(seed)
    y = [2.0 * a - 1.0 + draws.normal() for a in x]
    found = straight_line(x, y)
    slope, intercept = np.polyfit(x, y, 1)
    assert found.slope == pytest.approx(slope, rel=1e-6, abs=1e-6)
    assert found.intercept == pytest.approx(intercept, rel=1e-6, abs=1e-6)
    assert found.r_squared == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2, abs=1e-6)


def test_power_law_gives_the_exponent() -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    assert power_law(x, [3.0 / a for a in x]).slope == pytest.approx(-1.0)
    assert proportion(x, [2.5 * a for a in x]) == pytest.approx(2.5)
    with pytest.raises(ValueError, match="two different"):
        straight_line([1.0, 1.0], [1.0, 2.0])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_quantile_is_numpys(values, share) -> None:
    assert quantile(values, share) == pytest.approx(float(np.quantile(values, share)), rel=1e-9, abs=1e-6)


def test_interquartile_mean_leaves_out_a_quarter_at_either_end() -> None:
    assert interquartile_mean([-1000, 1, 2, 3, 4, 5, 6, 1000]) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert interquartile_mean([0.0, 1.0, 2.0, 9.0, 100.0]) == pytest.approx((0.75 * 1 + 2 + 0.75 * 9) / 2.5)


def test_bootstrap_covers_the_mean_about_nineteen_times_in_twenty() -> None:
    covered = 0
    for seed in range(200):
        draws = Draws(seed)
        values = [draws.normal() for _ in range(30)]
        covered += bootstrap(values, lambda sample: sum(sample) / len(sample), seed, 200).holds(0.0)
    assert 170 <= covered <= 198


def test_bootstrap_is_fixed_by_its_seed_and_skips_what_cannot_be_computed() -> None:
    def statistic(sample):
        if len(set(sample)) == 1:
            raise ValueError
        return median(sample)

    assert bootstrap([1, 2, 3], statistic, 1) == bootstrap([1, 2, 3], statistic, 1)
    with pytest.raises(ValueError, match="no values"):
        bootstrap([1], statistic, 1)


def test_blocks_are_consecutive_and_lose_nothing() -> None:
    for count in (1, 7, 8, 16, 30):
        values = list(range(count))
        assert [v for block in blocks(values, 8) for v in block] == values


def test_draws_are_uniform_and_normal() -> None:
    draws = Draws(5)
    uniform = [draws.uniform() for _ in range(20_000)]
    assert abs(np.mean(uniform) - 0.5) < 0.01
    assert 0 <= min(uniform) <= max(uniform) < 1
    normal = [draws.normal() for _ in range(20_000)]
    assert abs(np.mean(normal)) < 0.03
    assert abs(np.std(normal) - 1) < 0.02
    assert {draws.below(5) for _ in range(200)} == set(range(5))
