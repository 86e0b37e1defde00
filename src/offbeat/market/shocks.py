"""Demand shocks: the level of demand jumps at instants of its own, and stays put between them, so that profit stays
exact.

The level adds to every inside good's quality or intercept (see `demand`). Firms do not observe it. It knows no prices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offbeat.errors import SettingsError
from offbeat.market.clocks import Mask


@dataclass(frozen=True)
class Wander:
    """At Poisson instants of `rate` the level z becomes persistence z + scale sqrt(1 - persistence^2) N(0, 1): AR(1),
    SD `scale`.
    """

    rate: float
    scale: float
    persistence: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.rate) and self.rate > 0):
            raise SettingsError(f"shocks.rate: {self.rate} must be a finite number above 0")
        if not (np.isfinite(self.scale) and self.scale >= 0):
            raise SettingsError(f"shocks.scale: {self.scale} must be a finite number, 0 or more")
        if not -1 < self.persistence < 1:
            raise SettingsError(f"shocks.persistence: {self.persistence} must lie between -1 and 1")


@dataclass(frozen=True)
class Step:
    """The level is `size` from time `at` on, for `lasting` units of time, else 0."""

    at: float
    size: float
    lasting: float = np.inf

    def __post_init__(self) -> None:
        if not (np.isfinite(self.at) and self.at >= 0 and np.isfinite(self.size) and self.lasting > 0):
            raise SettingsError(f"shocks: at {self.at}, size {self.size}, lasting {self.lasting} is no step in demand")


Shocks = Wander | Step


class Levels:
    """The level of demand in every market, and when it changes next."""

    def __init__(self, shocks: Shocks, markets: int, rng: np.random.Generator) -> None:
        self._shocks, self._rng = shocks, rng
        self.level, self.next = np.zeros(markets), np.zeros(markets)
        self.start(np.ones(markets, dtype=bool))

    def start(self, where: Mask) -> None:
        """A fresh start: the stationary law for a wandering level, 0 before a step."""
        if isinstance(self._shocks, Wander):
            self.level[where] = (self._rng.standard_normal(len(where)) * self._shocks.scale)[where]
            self.next[where] = (self._rng.standard_exponential(len(where)) / self._shocks.rate)[where]
        else:
            self.level[where] = 0.0
            self.next[where] = self._shocks.at

    def change(self, where: Mask) -> None:
        """The level jumps in the markets `where` (M,), whose clock stands at `next`."""
        shocks = self._shocks
        if isinstance(shocks, Wander):
            fresh = self._rng.standard_normal(len(where)) * shocks.scale * np.sqrt(1 - shocks.persistence**2)
            self.level[where] = (shocks.persistence * self.level + fresh)[where]
            self.next[where] += (self._rng.standard_exponential(len(where)) / shocks.rate)[where]
        else:
            begins = where & (self.next == shocks.at)
            self.level[where] = np.where(begins, shocks.size, 0.0)[where]
            self.next[where] = np.where(begins, shocks.at + shocks.lasting, np.inf)[where]
