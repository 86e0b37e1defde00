"""Straight lines and power laws through points, means that resist outliers, and intervals by resampling.

Invariant: an interval is a function of its data and its seed. The units that are resampled are what is independent:
seeds of a study, blocks of consecutive steps of a run; never single steps. Plain floats; knows no study.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from offbeat.eventtime.draws import Draws

T = TypeVar("T")
RESAMPLES = 1000


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Line:
    """y = intercept + slope x by least squares; `r_squared` = 1 - residual / total sum of squares about the mean."""

    slope: float
    intercept: float
    r_squared: float


def straight_line(x: Sequence[float], y: Sequence[float]) -> Line:
    """Raises ValueError for fewer than two different x."""
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    spread = math.fsum((a - mean_x) ** 2 for a in x)
    if spread == 0:
        raise ValueError("a line needs two different x")
    slope = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    intercept = mean_y - slope * mean_x
    total = math.fsum((b - mean_y) ** 2 for b in y)
    residual = math.fsum((b - intercept - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    return Line(slope, intercept, 1.0 - residual / total if total else 1.0)


def power_law(x: Sequence[float], y: Sequence[float]) -> Line:
    """log y = intercept + slope log x; all x and y positive. The slope is the exponent."""
    return straight_line([math.log(a) for a in x], [math.log(b) for b in y])


def proportion(x: Sequence[float], y: Sequence[float]) -> float:
    """The c of y = c x by least squares. Raises ValueError where all x are 0."""
    weight = math.fsum(a * a for a in x)
    if weight == 0:
        raise ValueError("a proportion needs an x that is not 0")
    return math.fsum(a * b for a, b in zip(x, y, strict=True)) / weight


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between order statistics. Raises ValueError for no values."""
    if not values:
        raise ValueError("no values, no quantile")
    ranked = sorted(values)
    place = share * (len(ranked) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ranked) - 1)
    if ranked[below] == ranked[above]:  # also where both are infinite
        return ranked[below]
    return ranked[below] + (place - below) * (ranked[above] - ranked[below])


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of the middle half (IQM; Agarwal et al., arXiv 2108.13264): a quarter of the values at either end is left
    out, a value at the border counts in part."""
    ranked, quarter = sorted(values), len(values) / 4
    total = weight = 0.0
    for place, value in enumerate(ranked):
        share = max(0.0, min(place + 1, len(ranked) - quarter) - max(place, quarter))
        total += share * value
        weight += share
    return total / weight


def bootstrap(
    units: Sequence[T], statistic: Callable[[Sequence[T]], float], seed: int, resamples: int = RESAMPLES
) -> Interval:
    """The percentile interval of a statistic of independent units (Efron 1979), drawn with replacement from `seed`.

    Resamples for which the statistic raises ValueError are left out; where all do, ValueError.
    """
    draws = Draws(seed)
    found: list[float] = []
    for _ in range(resamples):
        sample = [units[draws.below(len(units))] for _ in units]
        try:
            found.append(statistic(sample))
        except ValueError:
            continue
    return Interval(quantile(found, 0.025), quantile(found, 0.975))


def blocks(values: Sequence[T], length: int) -> list[Sequence[T]]:
    """Consecutive runs of `length` values (the last may be longer), the units of a run's steps."""
    count = max(1, len(values) // length)
    ends = [len(values) * (i + 1) // count for i in range(count)]
    return [values[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
