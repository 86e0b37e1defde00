"""Clocks: when each firm may reprice. *Who acts at an instant acts at once, on what was seen before it.*

`Clock` says whose ticks come when; `Ticks` holds the next tick of every firm of every market and moves all markets to
their next event together. Competing exponential clocks are uniformisation written the other way round: the same law.
Periodic ticks are counted, not added up, so they do not drift. Nothing here knows prices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import SettingsError
from offbeat.market.demand import Array

Mask = NDArray[np.bool_]
Index = NDArray[np.intp]
Numbers = float | Array
"""One number for all markets, or one for each: shape (M,)."""
TOUCH = 1e-9
"""Instants closer than this are one instant (units of time): periodic clocks meet in spite of rounding."""


@dataclass(frozen=True)
class Poisson:
    """Ticks at `rate` per unit of time; waits are exponential."""

    rate: Numbers = 1.0


@dataclass(frozen=True)
class Periodic:
    """Ticks at phase, phase + period, phase + 2 period, ... (units of time)."""

    period: Numbers = 1.0
    phase: Numbers = 0.0


Tick = Poisson | Periodic


@dataclass(frozen=True)
class Clock:
    """`ticks` has one entry for each firm, or exactly one if `shared`: then all firms act at each of its ticks."""

    ticks: tuple[Tick, ...]
    shared: bool = False

    @classmethod
    def each(cls, *ticks: Tick) -> Clock:
        """Every firm has its own clock."""
        return cls(ticks)

    @classmethod
    def poisson(cls, *rates: Numbers) -> Clock:
        """Independent Poisson clocks, one rate for each firm."""
        return cls(tuple(Poisson(rate) for rate in rates))

    @classmethod
    def alternating(cls, firms: int, rate: Numbers = 1.0) -> Clock:
        """Firms act in turn, `rate` turns per unit of time and firm; each price stands for 1/rate."""
        period = 1.0 / np.asarray(rate, dtype=np.float64)
        return cls(tuple(Periodic(period, period * (i / firms)) for i in range(firms)))

    @classmethod
    def common(cls, rate: Numbers = 1.0) -> Clock:
        """All firms act together every 1/rate: the discrete repeated game."""
        return cls((Periodic(1.0 / np.asarray(rate, dtype=np.float64)),), shared=True)

    @classmethod
    def common_poisson(cls, rate: Numbers = 1.0) -> Clock:
        """All firms act together, at random instants: randomness without asynchrony."""
        return cls((Poisson(rate),), shared=True)

    @property
    def longest_wait(self) -> float:
        """The longest mean wait between two ticks of one clock, units of time."""
        return float(
            max(np.max(1 / np.asarray(t.rate) if isinstance(t, Poisson) else np.asarray(t.period)) for t in self.ticks)
        )


class Ticks:
    """The next tick of every clock of `markets` markets, and the event all of them are at.

    `now` (M,) is the time of the present event, `lapse` (M,) the time since the one before (or since the start),
    `market` and `firm` (rows,) who acts, firm-major; `at` = firm * M + market indexes raveled (n, M) arrays.
    """

    def __init__(self, clock: Clock, firms: int, markets: int, rng: np.random.Generator) -> None:
        if len(clock.ticks) != (1 if clock.shared else firms):
            raise SettingsError(f"clock: {len(clock.ticks)} clocks for {firms} firms; give one for each firm")
        self.firms, self.markets, self.shared = firms, markets, clock.shared
        self._rng = rng
        rows = [_row(tick, markets) for tick in clock.ticks]
        self._mean = np.stack([row[0] for row in rows])  # wait between ticks (C, M)
        self._phase = np.stack([row[1] for row in rows])
        self._random = np.array([isinstance(tick, Poisson) for tick in clock.ticks])
        self._all_random, self._all_counted = bool(self._random.all()), not self._random.any()
        self._meets = not clock.shared and self._may_meet()
        self._count = np.zeros_like(self._mean)
        self._next = np.empty_like(self._mean)
        self.now, self.lapse = np.zeros(markets), np.zeros(markets)
        self._each: Index = np.arange(markets)
        self._every: Index = np.arange(firms * markets)
        self.market, self.firm, self.at = self._each, self._each, self._every
        if clock.shared:
            self.market, self.firm = np.tile(self._each, firms), np.repeat(np.arange(firms), markets)
        self.start(np.ones(markets, dtype=bool))

    def start(self, where: Mask) -> None:
        """Set the clocks of the markets `where` (M,) to their beginning: time 0, first ticks drawn."""
        chance = self._rng.standard_exponential(self._mean.shape) * self._mean
        first = np.where(self._random[:, None], chance, self._phase)
        self._next[:, where] = first[:, where]
        self._count[:, where] = 0
        self.now = np.where(where, 0.0, self.now)  # a decision may hold the old array

    @property
    def aligned(self) -> bool:
        """Whether row r is always about market r: one firm acts at a time."""
        return not (self.shared or self._meets)

    @property
    def blocks(self) -> int:
        """The rows are so many times all markets in order: 1 where one firm acts, n where all do, 0 if that varies."""
        return self.firms if self.shared else 1 if self.aligned else 0

    def by_row(self, values: Array) -> Array:
        """Values of markets (M,) by row (rows,)."""
        return values if self.aligned else values[self.market]

    def _may_meet(self) -> bool:
        """Two periodic clocks never meet only where they have one period and different phases."""
        counted = ~self._random
        period, phase = self._mean[counted], self._phase[counted]
        if len(period) < 2:
            return False
        if not (period == period[0]).all():
            return True
        apart = np.sort(phase % period[0], axis=0)
        gaps = np.diff(np.concatenate([apart, apart[:1] + period[0]]), axis=0)
        return bool((gaps <= 2 * TOUCH).any())

    def find(self) -> None:
        """Move to the next event: sets now, lapse, market, firm, at."""
        if self.shared:
            counted = self._all_counted and bool(self._count[0].all())
            ahead = self._next[0].copy()
            self.lapse = self._mean[0] if counted else ahead - self.now
            self.now = ahead
            return
        following = self._next
        ahead = np.minimum(following[0], following[1]) if self.firms == 2 else following.min(axis=0)
        self.lapse = ahead - self.now
        self.now = ahead
        if self._meets:
            self.firm, self.market = np.nonzero(following <= ahead + TOUCH)
            self.at = self.firm * self.markets + self.market
        else:
            self.firm = (following[1] < following[0]).astype(np.intp) if self.firms == 2 else following.argmin(axis=0)
            self.at = self.firm * self.markets
            self.at += self._each

    def wind(self, where: Mask | None = None) -> None:
        """Set the clocks of those who act at the present event (in the markets `where` (M,)) to their next tick."""
        if self.shared:
            at, now = self._each, self.now
            rows = None if where is None else np.flatnonzero(where)
        else:
            at, now = self.at, self.by_row(self.now)
            rows = None if where is None else np.flatnonzero(where[self.market])
        if rows is not None:
            at, now = at[rows], now[rows]
        if not self._all_random:
            self._count.reshape(-1)[at] += 1.0
        flat = self._next.reshape(-1)
        mean = self._mean.reshape(-1)
        if self._all_counted:
            flat[at] = self._phase.reshape(-1)[at] + self._count.reshape(-1)[at] * mean[at]
            return
        chance = self._rng.standard_exponential(len(at))
        chance *= mean.take(at, mode="clip")
        chance += now
        if self._all_random:
            flat[at] = chance
            return
        counted = self._phase.reshape(-1)[at] + self._count.reshape(-1)[at] * mean[at]
        flat[at] = np.where(self._random[at // self.markets], chance, counted)


def _row(tick: Tick, markets: int) -> tuple[Array, Array]:
    """(mean wait, phase), each (M,)."""
    if isinstance(tick, Poisson):
        rate = _each("rate", tick.rate, markets)
        if not (np.isfinite(rate).all() and (rate > 0).all()):
            raise SettingsError(f"rate: {float(rate[~(rate > 0)].min(initial=np.inf))} must be a finite number above 0")
        return 1.0 / rate, np.zeros(markets)
    period, phase = _each("period", tick.period, markets), _each("phase", tick.phase, markets)
    if not (np.isfinite(period).all() and (period > 0).all()):
        raise SettingsError("period: must be a finite number above 0 (a rate must be above 0, too)")
    if not (np.isfinite(phase).all() and (phase >= 0).all()):
        raise SettingsError("phase: must be a finite number, 0 or more")
    return period, phase


def _each(name: str, value: Numbers, markets: int) -> Array:
    numbers = np.asarray(value, dtype=np.float64)
    if numbers.ndim and numbers.shape != (markets,):
        raise SettingsError(f"{name}: shape {numbers.shape}; give one number, or one for each of {markets} markets")
    return np.broadcast_to(numbers, (markets,)).copy()
