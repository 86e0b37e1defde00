"""A course: what policies did in markets up to a horizon, kept event by event, with exact discounted profits.

`play` runs policies, with a firm's prices overridden where a test forces a deviation. A course is read in calendar
time (`at`) and its profits are integrals of piecewise-constant flows. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from offbeat.errors import SettingsError
from offbeat.market.clocks import Index
from offbeat.market.demand import Array
from offbeat.market.industry import Industry
from offbeat.market.market import Decision, Market
from offbeat.market.rules import Policy

Override = Callable[[Decision, Array], Array]
"""(decision, proposed prices) -> prices: how a test forces a firm's hand."""


@dataclass(frozen=True)
class Course:
    """E events of M markets.

    times (E, M): instant of each event, the first at 0 with the initial prices; prices (E, n, M): in force from that
    instant on; decisions, posted: who acted at events 1, 2, ... on what, and the prices they posted.
    """

    industry: Industry
    horizon: float
    times: Array
    prices: Array
    decisions: tuple[Decision, ...]
    posted: tuple[Array, ...]

    def at(self, instants: Array) -> Array:
        """Prices in force at `instants` (T,) or (T, M): (T, n, M)."""
        instants = np.broadcast_to(
            instants if instants.ndim == 2 else instants[:, None], (len(instants), self.times.shape[1])
        )
        found = np.empty((len(instants), *self.prices.shape[1:]))
        for market in range(self.times.shape[1]):
            event = np.searchsorted(self.times[:, market], instants[:, market], side="right") - 1
            found[:, :, market] = self.prices[np.maximum(event, 0), :, market]
        return found

    def flows(self) -> Array:
        """Profit flows (E, n, M) from each event on, with demand at rest."""
        return np.moveaxis(self.industry.flow(np.moveaxis(self.prices, 1, 0)), 0, 1)

    def value(self, rho: float, since: Array, until: Array) -> Array:
        """Profits discounted to `since`: integral over [since, until] of e^{-rho (s - since)} flow; both (M,); (n,
        M).
        """
        starts = np.clip(self.times, since, until)
        ends = np.clip(np.concatenate([self.times[1:], np.full((1, self.times.shape[1]), np.inf)]), since, until)
        if rho == 0:
            weight = ends - starts
        else:
            weight = -np.exp(-rho * (starts - since)) * np.expm1(-rho * (ends - starts)) / rho
        return np.asarray((self.flows() * weight[:, None, :]).sum(axis=0))

    def mean_profit(self, since: float, until: float) -> Array:
        """Mean profit flow over [since, until] (n, M)."""
        markets = self.times.shape[1]
        return self.value(0.0, np.full(markets, since), np.full(markets, until)) / (until - since)

    def mean_price(self, since: float, until: float) -> Array:
        """Time-weighted mean price over [since, until] (n, M)."""
        starts = np.clip(self.times, since, until)
        ends = np.clip(np.concatenate([self.times[1:], np.full((1, self.times.shape[1]), np.inf)]), since, until)
        return np.asarray((self.prices * (ends - starts)[:, None, :]).sum(axis=0) / (until - since))


def proposals(policies: Sequence[Policy], decision: Decision) -> Array:
    """What each firm's policy asks, by row."""
    prices = np.empty(len(decision))
    for firm, policy in enumerate(policies):
        rows = np.flatnonzero(decision.firm == firm)
        if len(rows):
            prices[rows] = policy(rows_of(decision, rows))
    return prices


def rows_of(decision: Decision, rows: Index) -> Decision:
    """The decision restricted to `rows`."""
    return Decision(*(getattr(decision, name)[rows] for name in Decision.__slots__))


def play(market: Market, policies: Sequence[Policy], horizon: float, override: Override | None = None) -> Course:
    """Run `policies`, one for each firm, in fresh markets until all have passed `horizon` units of time."""
    if len(policies) != market.firms:
        raise SettingsError(f"policies: {len(policies)} for {market.firms} firms; give one for each firm")
    decision = market.reset()
    times, prices = [np.zeros(market.markets)], [market.prices.copy()]
    decisions, posted = [], []
    while (market.now < horizon).any():
        asked = proposals(policies, decision)
        if override is not None:
            asked = override(decision, asked)
        now = market.now
        following = market.step(asked)
        times.append(now)
        prices.append(market.prices.copy())
        decisions.append(decision)
        posted.append(asked)
        decision = following
    return Course(market.industry, horizon, np.stack(times), np.stack(prices), tuple(decisions), tuple(posted))
