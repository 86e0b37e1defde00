"""Calibrated regret: what a seller would have gained by replacing each of its prices by the best other one, on the
occasions it used it.

Competition makes it vanish; a policy that holds a price above what pays at the moment cannot make it vanish (Hartline,
Long and Zhang, arXiv 2401.15794). `of_course`: in a market whose demand is known, exact, rivals' prices held where
they were. `of_log`: from a log of sales, by inverse propensity weights. Regret alone proves no agreement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offbeat.eventtime.streams import stream_seed
from offbeat.market.clocks import Index
from offbeat.market.course import Course
from offbeat.market.demand import Array

LEVELS = 25
RESAMPLES = 500


@dataclass(frozen=True)
class Regret:
    """Per unit of time (or per period of a log): `regret` with its 95 % interval, mean `profit`, `share` = regret /
    profit.
    """

    regret: float
    low: float
    high: float
    profit: float
    units: int

    @property
    def share(self) -> float:
        """Regret as a share of profit; NaN where there is no profit."""
        return self.regret / self.profit if self.profit > 0 else float("nan")

    @property
    def of_profit(self) -> str:
        """The share in words."""
        return f"{self.share:.1%} of profit" if self.profit > 0 else "with no profit to compare it with"

    def as_dict(self) -> dict[str, float | int | None]:
        """For JSON."""
        found = {"regret": self.regret, "low": self.low, "high": self.high, "profit": self.profit, "share": self.share}
        return {k: (v if np.isfinite(v) else None) for k, v in found.items()} | {"units": self.units}


def of_course(course: Course, firm: int, box: tuple[float, float], since: float, seed: int = 0) -> Regret:
    """Of `firm` over [since, horizon] of a course; markets are the independent units."""
    markets = course.times.shape[1]
    start = np.clip(course.times, since, course.horizon)
    end = np.clip(np.concatenate([course.times[1:], np.full((1, markets), np.inf)]), since, course.horizon)
    weight = (end - start) / (course.horizon - since)
    alternatives = np.linspace(*box, LEVELS)
    prices = np.moveaxis(course.prices, 1, 0)  # (n, E, M)
    own = course.industry.flow(prices)[firm]
    level = np.abs(prices[firm][..., None] - alternatives).argmin(axis=-1)
    gained = np.zeros((markets, LEVELS, LEVELS))
    columns = np.broadcast_to(np.arange(markets), level.shape)
    for k, price in enumerate(alternatives):
        other = prices.copy()
        other[firm] = price
        better = (course.industry.flow(other)[firm] - own) * weight
        np.add.at(gained[:, :, k], (columns, level), better)
    return _interval(gained, float((own * weight).sum(axis=0).mean()), seed)


def _interval(gained: Array, profit: float, seed: int) -> Regret:
    """`gained` (units, levels, levels): gain of each unit from replacing its prices of a level by another, per unit of
    time.
    """
    units = len(gained)

    def total(weights: Array) -> float:
        mean = np.tensordot(weights, gained, axes=1)
        return float(np.maximum(mean.max(axis=-1), 0.0).sum())

    whole = total(np.full(units, 1 / units))
    if units < 2:
        return Regret(whole, np.nan, np.nan, profit, units)
    rng = np.random.default_rng(stream_seed(seed, "regret"))
    drawn = rng.multinomial(units, np.full(units, 1 / units), RESAMPLES) / units
    low, high = np.quantile([total(weights) for weights in drawn], [0.025, 0.975])
    return Regret(whole, float(low), float(high), profit, units)


@dataclass(frozen=True)
class LogRegret:
    """`regret` of a log, the share of own-price levels with enough sales at another level to be compared
    (`identified`), and the number of levels."""

    regret: Regret
    identified: float
    levels: int
    propensities: str


def of_log(
    price: Array, quantity: Array, cost: float, propensity: Array | None = None, *, most_levels: int = 10, seed: int = 0
) -> LogRegret:
    """Of one seller's periods: `price`, `quantity` (T,), unit `cost`; `propensity` (T,) the chance with which it chose
    that price.

    Without propensities they are estimated by the frequency of each price level after the present one (a first-order
    chain). Only replacements seen at least `ENOUGH` times after a level are compared. Blocks of periods are the units
    of the bootstrap.
    """
    level, levels = _levels(price, most_levels)
    profit = (price - cost) * quantity
    context = np.concatenate([[level[0]], level[:-1]])
    seen = np.zeros((levels, levels))
    np.add.at(seen, (context, level), 1.0)
    chances = seen / np.maximum(seen.sum(axis=1, keepdims=True), 1.0)  # (context, level)
    chosen = chances[context, level] if propensity is None else propensity
    periods = len(price)
    blocks = np.minimum(
        np.arange(periods) * max(2, int(np.sqrt(periods))) // periods, max(2, int(np.sqrt(periods))) - 1
    )
    gained = np.zeros((int(blocks.max()) + 1, levels, levels))
    worth = profit / chosen
    for own in range(levels):
        stake = chances[context, own]  # how often the seller uses `own` here
        for other in range(levels):
            if other == own or not _enough(seen, own, other):
                continue
            effect = stake * (np.where(level == other, worth, 0.0) - np.where(level == own, worth, 0.0))
            gained[:, own, other] = np.bincount(blocks, effect, len(gained)) * len(gained) / periods
    identified = [any(_enough(seen, own, other) for other in range(levels) if other != own) for own in range(levels)]
    used = np.bincount(level, minlength=levels) / periods
    found = _interval(gained, float(profit.mean()), seed)
    how = "logged" if propensity is not None else "estimated from the price before"
    return LogRegret(found, float(used[np.array(identified)].sum()), levels, how)


ENOUGH = 20


def _enough(seen: Array, own: int, other: int) -> bool:
    """Both levels were chosen often enough in the contexts in which `own` was."""
    contexts = seen[:, own] > 0
    return bool(
        seen[contexts, other].sum() >= ENOUGH and seen[:, own].sum() >= ENOUGH and (seen[contexts, other] > 0).all()
    )


def _levels(price: Array, most: int) -> tuple[Index, int]:
    """Level of each price: distinct prices where they are few, else equal-count bins."""
    distinct, index = np.unique(np.round(price, 9), return_inverse=True)
    if len(distinct) <= most:
        return index, len(distinct)
    edges = np.unique(np.quantile(price, np.linspace(0, 1, most + 1)[1:-1]))
    return np.searchsorted(edges, price, side="right"), len(edges) + 1
