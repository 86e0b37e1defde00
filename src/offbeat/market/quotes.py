"""Observation latency: what firm i knows of firm j's price at time t. *Nobody sees the future; nobody sees later than
its lag allows.*

With lag D, a look at t shows the price in force at t - D (before the start: the initial price). A constant law has D =
mean; a random law draws D at each look, and a firm never forgets a newer price it has seen: the instant it sees up to
never goes back. `Quotes` keeps snapshots of all prices, one per event, in a ring that grows where latency needs more;
the slot is the same for all markets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import SettingsError
from offbeat.market.clocks import TOUCH, Index, Mask
from offbeat.market.demand import Array

Law = Literal["constant", "uniform", "exponential"]


@dataclass(frozen=True)
class Latency:
    """Lag of what firm i sees of firm j, units of time.

    `mean`: a number, (n, n) with [i, j] = observer, observed, or (n, n, M) for each market; the diagonal is ignored.
    `law`: constant; uniform on [0, 2 mean]; exponential.
    """

    mean: float | Array = 0.0
    law: Law = "constant"

    def __post_init__(self) -> None:
        mean = np.asarray(self.mean, dtype=np.float64)
        if not (np.isfinite(mean).all() and (mean >= 0).all()):
            raise SettingsError("latency: every entry must be a finite number, 0 or more")
        if self.law not in ("constant", "uniform", "exponential"):
            raise SettingsError(f"latency: no law {self.law!r}; there are constant, uniform, exponential")

    def each(self, firms: int, markets: int) -> Array:
        """Mean lags (n, n, M), own lag 0."""
        mean = np.asarray(self.mean, dtype=np.float64)
        if mean.ndim == 2:
            mean = mean[:, :, None]
        try:
            full = np.broadcast_to(mean, (firms, firms, markets)).copy()
        except ValueError:
            raise SettingsError(
                f"latency: shape {mean.shape} does not fit {firms} firms and {markets} markets"
            ) from None
        full[np.arange(firms), np.arange(firms)] = 0.0
        return full


class Quotes:
    """Past prices of all firms, and what a firm may see of them."""

    def __init__(self, latency: Latency, firms: int, markets: int, rng: np.random.Generator) -> None:
        lag = latency.each(firms, markets)
        self.firms, self.markets, self._law, self._rng = firms, markets, latency.law, rng
        self.instant = not lag.any()
        self._lag = lag.reshape(-1)
        self._longest = lag.max(axis=(0, 1))
        across = lag[~np.eye(firms, dtype=bool)]
        self._same = float(across.flat[0]) if across.size and (across == across.flat[0]).all() else None
        size = 1 if self.instant else 8
        self._times = np.full((size, markets), -np.inf)
        self._prices = np.zeros((size, firms, markets))
        self._posted = np.zeros((size, firms, markets))
        self._head = 0
        self._back: Index = np.arange(size)
        self._starts: Index = np.zeros(size, dtype=np.intp)
        self._upto = np.full((firms, firms, markets), -np.inf).reshape(-1)  # random laws: instant already seen up to

    def start(self, where: Mask, prices: Array) -> None:
        """Forget the past of the markets `where` (M,); `prices` (n, M) have been in force for ever, posted at time
        0.
        """
        self._times[:, where] = -np.inf
        self._prices[:, :, where] = prices[:, where]
        self._posted[:, :, where] = 0.0
        self._upto.reshape(-1, self.markets)[:, where] = -np.inf

    def record(self, now: Array, prices: Array, posted: Array) -> None:
        """From `now` (M,) on, `prices` (n, M) are in force, posted at `posted` (n, M)."""
        if self.instant:
            return
        size = len(self._times)
        oldest_kept = (self._head + 2) % size  # slot head + 1 is overwritten
        if (self._times[oldest_kept] > self._needed(now)).any():
            self._grow()
        self._head = (self._head + 1) % len(self._times)
        self._times[self._head] = now
        self._prices[self._head] = prices
        self._posted[self._head] = posted
        self._starts = (self._head - self._back) % len(self._times) * (self.firms * self.markets)

    def see(self, observer: Index, seen: Index, market: Index, now: Array, blocks: int) -> tuple[Array, Array]:
        """(price, time it was posted) of firm `seen` that `observer` sees in `market` at `now`; all (rows,).

        `blocks`: the rows are so many times all markets in order; 0 where they are not.
        """
        until = self._until(observer, seen, market, now)
        size = len(self._times)
        if blocks:
            newer = (self._times[:, None, :] > until.reshape(blocks, self.markets)).reshape(size, -1)
        else:
            newer = self._times[:, market] > until
        counted = np.uint8 if size < 256 else np.int64
        back: NDArray[Any] = np.add.reduce(newer.view(np.uint8), axis=0, dtype=counted)
        at: Index = self._starts.take(
            back, mode="clip"
        )  # slots counted back from the newest, as offsets into (size, n, M)
        at += seen * self.markets
        at += market
        return self._prices.reshape(-1).take(at, mode="clip"), self._posted.reshape(-1).take(at, mode="clip")

    def _until(self, observer: Index, seen: Index, market: Index, now: Array) -> Array:
        """The instant up to which a look at `now` sees; TOUCH late, so that exact lags survive rounding."""
        if self._law == "constant" and self._same is not None:
            return np.asarray(now - (self._same - TOUCH))
        pair = (observer * self.firms + seen) * self.markets + market
        if self._law == "constant":
            return np.asarray(now - self._lag[pair] + TOUCH, dtype=np.float64)
        lag = self._lag[pair]
        lag *= (
            self._rng.uniform(0, 2, len(pair)) if self._law == "uniform" else self._rng.standard_exponential(len(pair))
        )
        until: Array = np.maximum(self._upto[pair], now - lag + TOUCH)
        self._upto[pair] = until
        return until

    def _needed(self, now: Array) -> Array:
        """No later look sees further back than this (M,)."""
        if self._law == "constant":
            return np.asarray(now - self._longest)
        pairs = self._upto.reshape(self.firms, self.firms, self.markets)
        return np.asarray(pairs[~np.eye(self.firms, dtype=bool)].min(axis=0))

    def _grow(self) -> None:
        """Double the ring, newest snapshot last."""
        size = len(self._times)
        order = (np.arange(size) + self._head + 1) % size
        first = order[0]
        for name in ("_times", "_prices", "_posted"):
            old = getattr(self, name)
            padding = np.repeat(old[first][None], size, axis=0)
            setattr(self, name, np.concatenate([padding, old[order]]))
        self._head = 2 * size - 1
        self._back = np.arange(2 * size)
