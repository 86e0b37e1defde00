"""A mean with its uncertainty: never a bare number. Percentile bootstrap over independent units (markets, sessions,
seeds).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offbeat.eventtime.streams import stream_seed
from offbeat.market.clocks import Index
from offbeat.market.demand import Array

RESAMPLES = 2000
CHUNK = 200_000


@dataclass(frozen=True)
class Estimate:
    """Mean, 95 % interval of the mean, standard deviation and interquartile mean over `count` units. NaN where there
    is nothing.
    """

    mean: float
    low: float
    high: float
    sd: float
    iqm: float
    count: int

    def as_dict(self) -> dict[str, float | int | None]:
        """For JSON: None instead of NaN."""
        found = {name: getattr(self, name) for name in ("mean", "low", "high", "sd", "iqm", "count")}
        return {
            name: None if isinstance(value, float) and not np.isfinite(value) else value
            for name, value in found.items()
        }

    def __str__(self) -> str:
        mean, low, high = (round(value, 3) + 0.0 for value in (self.mean, self.low, self.high))  # no -0.000
        return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def by_unit(values: Array, units: Index | None) -> Array:
    """Means over the entries of each unit: `values` (..., M) with `units` (M,) to (..., units); as they are without
    units.
    """
    if units is None:
        return values
    names = np.unique(units)
    return np.stack([values[..., units == name].mean(axis=-1) for name in names], axis=-1)


def estimate(values: Array) -> Estimate:
    """Of independent `values` (units,); those that are not finite are left out. Interval: 2.5 and 97.5 % of 2000
    resampled means.
    """
    values = np.asarray(values, dtype=np.float64).reshape(-1)
    values = values[np.isfinite(values)]
    count = len(values)
    if count == 0:
        return Estimate(np.nan, np.nan, np.nan, np.nan, np.nan, 0)
    ordered = np.sort(values)
    cut = count // 4
    iqm = float(ordered[cut : count - cut].mean())
    mean = float(values.mean())
    if count == 1:
        return Estimate(mean, np.nan, np.nan, np.nan, iqm, 1)
    rng = np.random.default_rng(stream_seed(0, "bootstrap", count))
    rows = max(1, CHUNK // count)
    means = np.concatenate(
        [
            values[rng.integers(0, count, (min(rows, RESAMPLES - done), count))].mean(axis=1)
            for done in range(0, RESAMPLES, rows)
        ]
    )
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(mean, float(low), float(high), float(values.std(ddof=1)), iqm, count)
