"""Arithmetic of intervals over bins: how busy, how many tokens a second. Pure numpy; knows no events."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def bin_edges(seconds: float, bins: int = 160, narrowest: float = 0.5) -> Floats:
    """Edges [B + 1] of equal bins from 0 that cover `seconds`; none narrower than `narrowest` seconds."""
    count = max(1, min(bins, int(seconds / narrowest)))
    return np.linspace(0.0, max(seconds, narrowest), count + 1)


def mean_rate(starts: Floats, ends: Floats, amounts: Floats, edges: Floats) -> Floats:
    """Mean rate [B] in each bin when interval i delivers amounts[i] evenly over [starts[i], ends[i]].

    The delivered total up to time t is F(t) = sum over starts < t of r (t - start) - sum over ends < t of
    r (t - end), with r = amount / (end - start); the mean rate is the difference of F over the bin's width.
    With amounts = ends - starts it is the mean number of intervals under way.
    """
    spans = np.maximum(ends - starts, 1e-9)
    rates = amounts / spans
    delivered = _ramp(starts, rates, edges) - _ramp(starts + spans, rates, edges)
    result: Floats = np.diff(delivered) / np.diff(edges)
    return result


def _ramp(times: Floats, rates: Floats, at: Floats) -> Floats:
    """sum over times[i] < t of rates[i] (t - times[i]), for each t in `at`."""
    order = np.argsort(times)
    times, rates = times[order], rates[order]
    before = np.searchsorted(times, at)
    slope = np.concatenate([[0.0], np.cumsum(rates)])[before]
    offset = np.concatenate([[0.0], np.cumsum(rates * times)])[before]
    result: Floats = slope * at - offset
    return result


def count_rate(times: Floats, edges: Floats) -> Floats:
    """Events a second in each bin [B]."""
    counts, _ = np.histogram(times, edges)
    result: Floats = counts / np.diff(edges)
    return result


def moving_mean(values: Floats, width: int) -> Floats:
    """Mean of the last `width` values at each position [N]; of fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    result: Floats = (sums[ends] - sums[starts]) / (ends - starts)
    return result
