"""Arithmetic of intervals over bins, against sums written out interval by interval."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.report.bins import bin_edges, count_rate, mean_rate, moving_mean

TIMES = st.floats(0, 50, allow_nan=False)
INTERVALS = st.lists(st.tuples(TIMES, st.floats(0.01, 20), st.floats(0, 100)), max_size=12)


@given(intervals=INTERVALS, bins=st.integers(1, 9))
def test_mean_rate_is_the_overlap_of_every_interval_with_every_bin(
    intervals: list[tuple[float, float, float]], bins: int
) -> None:
    edges = np.linspace(0.0, 60.0, bins + 1)
    starts, spans, amounts = (np.array([row[i] for row in intervals]) for i in range(3))
    found = mean_rate(starts, starts + spans, amounts, edges)
    for b, (low, high) in enumerate(pairwise(edges)):
        delivered = sum(
            amount * max(0.0, min(high, start + span) - max(low, start)) / span for start, span, amount in intervals
        )
        assert found[b] == pytest.approx(delivered / (high - low), abs=1e-6)


def test_an_interval_without_length_delivers_its_amount() -> None:
    at = np.array([1.5])
    assert mean_rate(at, at, np.array([8.0]), np.array([0.0, 1.0, 2.0])).tolist() == pytest.approx([0.0, 8.0])


@given(values=st.lists(st.floats(-10, 10), min_size=1, max_size=30), width=st.integers(1, 12))
def test_moving_mean(values: list[float], width: int) -> None:
    found = moving_mean(np.array(values), width)
    for i in range(len(values)):
        newest = values[max(0, i - width + 1) : i + 1]
        assert found[i] == pytest.approx(sum(newest) / len(newest), abs=1e-9)


def test_count_rate_counts() -> None:
    assert count_rate(np.array([0.1, 0.2, 1.9]), np.array([0.0, 1.0, 2.0])).tolist() == [2.0, 1.0]


@pytest.mark.parametrize("seconds", [0.0, 0.2, 1.0, 37.3, 90000.0])
def test_bins_cover_the_run(seconds: float) -> None:
    edges = bin_edges(seconds)
    assert edges[0] == 0.0
    assert edges[-1] >= seconds
    assert 2 <= len(edges) <= 161
    assert np.all(np.diff(edges) >= 0.5 - 1e-9)
