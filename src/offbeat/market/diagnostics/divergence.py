"""Critic divergence, certified: true values cannot exceed max |profit flow| / rho, so a critic that does has diverged.

*The rule is declared before a run and applied to its trace alone*: a run is excluded once any recorded |Q| exceeds the
bound by more than the margin, or is not a number. Results are told with the excluded and without. It knows no learner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offbeat.errors import SettingsError
from offbeat.market.clocks import Index, Mask
from offbeat.market.demand import Array
from offbeat.market.estimate import Estimate, estimate
from offbeat.market.industry import Industry

LINE = 20_001
GRID_SLACK = 1.001


def largest_flow(industry: Industry, box: tuple[float, float]) -> float:
    """An upper bound on |profit flow| of any firm at prices in `box`.

    Goods are substitutes: a firm sells most when rivals ask the most, so one line of own prices holds the extreme; the
    line is a grid of 20,001 prices, with 0.1 % added for what lies between.
    """
    low, high = box
    own = np.linspace(low, high, LINE)
    most = 0.0
    for firm in range(industry.firms):
        prices = np.full((industry.firms, LINE), high)
        prices[firm] = own
        most = max(most, float(np.abs(industry.flow(prices)[firm]).max()))
    return GRID_SLACK * most


def value_bound(industry: Industry, box: tuple[float, float], rho: float) -> float:
    """Bound on |Q| under the time-aware discount e^{-rho tau}: largest flow / rho. Raises SettingsError for rho = 0."""
    if not rho > 0:
        raise SettingsError(f"rho: {rho}; without discounting values have no bound")
    return largest_flow(industry, box) / rho


@dataclass(frozen=True)
class ExclusionRule:
    """Declared before the run: excluded iff any |Q| > (1 + margin) bound, or Q is NaN or infinite."""

    bound: float
    margin: float = 0.1

    def diverged(self, trace: Array) -> Mask:
        """`trace` (steps, runs) of recorded Q values (the largest |Q| of each step): (runs,) bool."""
        with np.errstate(invalid="ignore"):
            return np.asarray((~(np.abs(trace) <= (1 + self.margin) * self.bound)).any(axis=0))

    def at(self, trace: Array) -> Index:
        """The step at which each run diverged (runs,), -1 where it did not."""
        beyond = ~(np.abs(trace) <= (1 + self.margin) * self.bound)
        return np.where(beyond.any(axis=0), beyond.argmax(axis=0), -1)


@dataclass(frozen=True)
class Told:
    """An outcome over runs with and without those that diverged."""

    everyone: Estimate
    kept: Estimate
    diverged: int


def tell(outcome: Array, diverged: Mask) -> Told:
    """`outcome` (runs,), `diverged` (runs,) bool."""
    return Told(estimate(outcome), estimate(outcome[~diverged]), int(diverged.sum()))
