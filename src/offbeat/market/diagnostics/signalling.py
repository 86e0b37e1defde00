"""Within-episode signalling: does a firm's price change answer the change it last saw a rival make, and does that fade?

The slope of own change on the seen rival change, by fifth of the episode, against a null in which the seen changes of
a firm are shuffled in time within market and fifth. *Collapse* is a late slope whose interval covers the null while an
early one did not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offbeat.eventtime.streams import stream_seed
from offbeat.market.clocks import Index
from offbeat.market.course import Course
from offbeat.market.demand import Array

FIFTHS = 5
SHUFFLES = 200
RESAMPLES = 500


@dataclass(frozen=True)
class Signalling:
    """By fifth of the episode (5,): slope, its 95 % interval (bootstrap over markets), the null's 95 % interval, pairs
    behind it.

    NaN where rivals did not change their prices. `collapsed`: see the module.
    """

    slope: Array
    low: Array
    high: Array
    null_low: Array
    null_high: Array
    pairs: Array
    collapsed: bool


def signalling(course: Course, seed: int = 0, units: Index | None = None) -> Signalling:
    """The response of own changes to seen changes over a course; `units` (M,) are resampled together, else markets."""
    own, rival, market, fifth, firm = _changes(course)
    whole = market if units is None else units[market]
    rows = []
    for part in range(FIFTHS):
        chosen = fifth == part
        group = market[chosen] * course.prices.shape[1] + firm[chosen]
        rows.append(
            _slope_with_null(own[chosen], rival[chosen], whole[chosen], group, stream_seed(seed, "signal", part))
        )
    slope, low, high, null_low, null_high, pairs = (np.array(column) for column in zip(*rows, strict=True))
    apart = (low > null_high) | (high < null_low)
    collapsed = bool(apart[0] and not apart[-1])
    return Signalling(slope, low, high, null_low, null_high, pairs, collapsed)


def _changes(course: Course) -> tuple[Array, Array, Index, Array, Index]:
    """Own change, mean seen rival change since the firm's previous decision, market, fifth, firm, one entry a
    decision.
    """
    n, markets = course.prices.shape[1:]
    own_before, seen_before = np.full((n, markets), np.nan), np.full((n, markets), np.nan)
    columns: list[tuple[Array, ...]] = []
    for decision, posted in zip(course.decisions, course.posted, strict=True):
        seen = decision.seen[:, 1:].mean(axis=1)
        at = (decision.firm, decision.market)
        own, rival = posted - own_before[at], seen - seen_before[at]
        own_before[at], seen_before[at] = posted, seen
        fine = np.isfinite(own) & (decision.now < course.horizon)
        part = np.floor(FIFTHS * decision.now / course.horizon)
        columns.append((own[fine], rival[fine], decision.market[fine], part[fine], decision.firm[fine]))
    own, rival, market, part, firm = (np.concatenate(values) for values in zip(*columns, strict=True))
    return own, rival, market, part, firm


def _slope_with_null(own: Array, rival: Array, market: Index, group: Index, seed: int) -> tuple[float, ...]:
    rng = np.random.default_rng(seed)
    if len(own) < 3 or rival.std() < 1e-12:
        return (np.nan, np.nan, np.nan, np.nan, np.nan, len(own))
    # Sums by market, so that resampling markets is a weighted sum.
    units, where = np.unique(market, return_inverse=True)
    sums = np.stack([np.bincount(where, x, len(units)) for x in (np.ones_like(own), own, rival, own * rival, rival**2)])

    def slope(weights: Array) -> Array:
        count, x, y, xy, yy = sums @ weights
        return np.asarray((xy - x * y / count) / (yy - y * y / count))

    drawn = rng.multinomial(len(units), np.full(len(units), 1 / len(units)), RESAMPLES).T.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.nanquantile(slope(drawn), [0.025, 0.975])
    centred_rival = rival - rival.mean()
    spread = float((centred_rival**2).sum())
    order = np.argsort(group, kind="stable")
    null = np.empty(SHUFFLES)
    for k in range(SHUFFLES):
        shuffled = np.empty_like(rival)
        mixed = np.lexsort((rng.random(len(group)), group))
        shuffled[order] = centred_rival[mixed]  # a permutation within each group
        null[k] = float((own * shuffled).sum()) / spread
    null_low, null_high = np.quantile(null, [0.025, 0.975])
    full = float(slope(np.ones((len(units), 1)))[0])
    return full, float(low), float(high), float(null_low), float(null_high), len(own)
