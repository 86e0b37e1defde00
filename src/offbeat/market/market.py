"""Many independent markets in lockstep: one call moves every market to its next decision.

    market = Market(calvano(), 4096, Clock.poisson(1.0, 1.0), latency=Latency(1.0), seed=0)
    decision = market.reset()
    while True:
        prices = policy(decision)          # (rows,): the new price of decision.firm[r] in decision.market[r]
        decision = market.step(prices)

A decision has one row per firm that acts: M rows where clocks never meet, n * M under a shared clock, a varying number
where periodic clocks meet; rows are firm-major where several firms of a market act. Profit is integrated exactly:
prices are constant between events. Markets never end; `restart` begins some anew (an episode). *What a firm sees was
in force at its own time minus its latency.* This file knows no learner and no equilibrium.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import SettingsError
from offbeat.eventtime.streams import stream_seed
from offbeat.market.clocks import Clock, Index, Mask, Numbers, Ticks
from offbeat.market.demand import Array
from offbeat.market.industry import Industry
from offbeat.market.limits import check_box, check_prices, checked_initial, checked_rates
from offbeat.market.quotes import Latency, Quotes
from offbeat.market.shocks import Levels, Shocks

RHO = float(-np.log(0.95))
"""Discount rate per unit of time that makes one unit worth Calvano's delta = 0.95."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Who acts now and what they know; arrays are fresh at each step and safe to keep. Times in units of time.

    market, firm   (rows,)    integer indexes now            (rows,)    time since the market's start seen
    (rows, n)  prices: column 0 own, column k those of firm (firm + k) mod n, as old as latency makes them age
    (rows, n)  now - time at which the seen price was posted; column 0 equals `elapsed` elapsed        (rows,)    tau:
    time since the firm's previous decision (since the start, if `first`) profit         (rows,)    integral over these
    tau of e^{-rho s} profit flow, s from the previous decision; money first          (rows,)    the firm's first
    decision since the start: no earlier action to credit with `profit`
    """

    market: Index
    firm: Index
    now: Array
    seen: Array
    age: Array
    elapsed: Array
    profit: Array
    first: Mask

    def __len__(self) -> int:
        return len(self.market)


class Market:
    """`markets` copies of an industry, each with its own time.

    Parameters: `clock` (see Clock; rates may differ by market: shape (M,)), `latency` (see Latency; (n, n, M) for each
    market), `rho` discount rate per unit of time, 0 for none, a number or (M,), `box` (lowest, highest) allowed price,
    a number each, `initial` prices in force at the start, (n,) or (n, M), drawn uniformly from the box where None,
    `shocks` of demand, `seed`. The same seed gives the same course under the same prices. Raises SettingsError for
    what cannot be.

    For diagnostics, not for policies: `prices`, `flow`, `earned` (n, M): prices in force, profit flow, undiscounted
    profit since the start (these change with the next step: copy what you keep); `now` (M,): time; `level` (M,): state
    of the demand shocks. With a `horizon`, `closing` (n, M) holds, once a market's event lies at or past it, the
    profit of each firm from its last decision before the horizon up to the horizon: what an episode that is cut there
    still owes.
    """

    def __init__(
        self,
        industry: Industry,
        markets: int,
        clock: Clock,
        *,
        latency: Latency | None = None,
        rho: Numbers = RHO,
        box: tuple[float, float] = (1.0, 2.5),
        initial: Array | None = None,
        shocks: Shocks | None = None,
        horizon: float | None = None,
        seed: int = 0,
    ) -> None:
        if horizon is not None and not horizon > 0:
            raise SettingsError(f"horizon: {horizon} must be above 0 units of time")
        if markets < 1:
            raise SettingsError(f"markets: {markets}; there must be at least 1")
        self.industry, self.firms, self.markets, self.box = industry, industry.firms, markets, check_box(box, industry)
        self.rho = checked_rates(rho, markets)
        self._shape = shape = (self.firms, markets)
        rng = [
            np.random.default_rng(stream_seed(seed, "market", part)) for part in ("clocks", "quotes", "start", "shocks")
        ]
        self._ticks = Ticks(clock, self.firms, markets, rng[0])
        self._quotes = Quotes(latency or Latency(), self.firms, markets, rng[1])
        self._rng = rng[2]
        self._levels = None if shocks is None else Levels(shocks, markets, rng[3])
        self._initial = None if initial is None else checked_initial(initial, shape, self.box)
        self._undiscounted = self.rho == 0
        self._any_undiscounted = bool(self._undiscounted.any())
        self._minus_rho, self._scale = -self.rho, -1.0 / np.where(self._undiscounted, 1.0, self.rho)
        self.prices, self.flow, self.earned = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._posted, self._owed, self._worth = np.zeros(shape), np.zeros(shape), np.ones(shape)
        self._acted = np.zeros(shape, dtype=bool)
        self._decision: Decision | None = None
        self._horizon = horizon
        self.closing = np.full(shape, np.nan)

    @property
    def now(self) -> Array:
        """Time of the present event in each market (M,)."""
        return self._ticks.now

    @property
    def level(self) -> Array | float:
        """State of the demand shocks (M,), 0 at rest."""
        return 0.0 if self._levels is None else self._levels.level

    def reset(self) -> Decision:
        """Start all markets and return the first decision of each. Later calls go on with the random streams: a new
        start.
        """
        everywhere = np.ones(self.markets, dtype=bool)
        self._begin(everywhere)
        self._decision = self._look(slice(None))
        return self._decision

    def restart(self, where: Mask) -> Decision:
        """Start the markets `where` (M,) anew; the present decision of all, theirs replaced, the others' as they
        were.
        """
        old, old_at = self.present, self._ticks.at
        self._begin(where)
        self._decision = self._merged(old, old_at, where)
        return self._decision

    def step(self, prices: Array, where: Mask | None = None) -> Decision:
        """Post `prices` (rows,) for the present decision and move every market to its next.

        With `where` (M,) only those markets move; prices of the other markets' rows are ignored and their decision
        stays. Raises SettingsError, before anything changes, where a price is not a number inside the box or rows do
        not match.
        """
        old, ticks, prices = self.present, self._ticks, np.asarray(prices, dtype=np.float64)
        at, now, posted = ticks.at, ticks.by_row(ticks.now), prices
        if where is not None:
            rows = np.flatnonzero(where[old.market])
            at, now, posted = at[rows], now[rows], prices[rows] if prices.shape == old.now.shape else prices
        check_prices(posted, len(at), self.box)
        self.prices.reshape(-1)[at] = posted
        self._posted.reshape(-1)[at] = now
        self._acted.reshape(-1)[at] = True
        self._quotes.record(ticks.now, self.prices, self._posted)
        self.flow = self.industry.flow(self.prices, self.level)
        old_at = ticks.at
        ticks.wind(where)
        ticks.find()
        if where is not None:
            ticks.lapse = np.where(where, ticks.lapse, 0.0)
        self._pass()
        self._decision = self._look(slice(None)) if where is None else self._merged(old, old_at, where)
        return self._decision

    def _merged(self, old: Decision, old_at: Index, where: Mask) -> Decision:
        """The present decision: looked at anew in the markets `where`, `old` elsewhere."""
        ticks = self._ticks
        rows = np.flatnonzero(where[ticks.market])
        new = self._look(rows)
        place = np.zeros(self.firms * self.markets, dtype=np.intp)
        place[old_at] = np.arange(len(old_at))
        kept = place[ticks.at]  # row of the old decision; of no meaning for rows looked at anew

        def merge(before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
            both = before[kept]
            both[rows] = after
            return both

        fields = (merge(getattr(old, name), getattr(new, name)) for name in Decision.__slots__[2:])
        return Decision(ticks.market, ticks.firm, *fields)

    def _begin(self, where: Mask) -> None:
        ticks = self._ticks
        if self._initial is None:
            low, high = self.box
            fresh = self._rng.uniform(low, high, self.prices.shape)
            self.prices[:, where] = fresh[:, where]
        else:
            self.prices[:, where] = self._initial[:, where]
        for array, value in ((self._posted, 0), (self._owed, 0), (self._worth, 1), (self._acted, 0), (self.earned, 0)):
            array[:, where] = value
        self.closing[:, where] = np.nan
        ticks.start(where)
        if self._levels is not None:
            self._levels.start(where)
        self._quotes.start(where, self.prices)
        self.flow = self.industry.flow(self.prices, self.level)
        ticks.find()
        ticks.lapse = np.where(where, ticks.now, 0.0)  # the others do not move
        self._pass()

    def _pass(self) -> None:
        """Let the time since the last event pass: accrue profit, through every demand shock on the way."""
        now, lapse = self._ticks.now, self._ticks.lapse
        if self._levels is None:
            if self._horizon is not None and (now >= self._horizon).any():
                self._close(now - lapse, now)
            self._accrue(lapse)
            return
        levels, since = self._levels, now - lapse
        while (due := levels.next < now).any():
            until = np.where(due, levels.next, since)
            self._close(since, until)
            self._accrue(until - since)
            since = until
            levels.change(due)
            self.flow = self.industry.flow(self.prices, levels.level)
        self._close(since, now)
        self._accrue(now - since)

    def _close(self, since: Array, until: Array) -> None:
        """Where the horizon lies in [since, until], both (M,): what each firm is owed at it."""
        if self._horizon is None:
            return
        crossed = (until >= self._horizon) & (since < self._horizon)
        owed = self._owed + self._worth * self._weight(np.where(crossed, self._horizon - since, 0.0)) * self.flow
        self.closing[:, crossed] = owed[:, crossed]

    def _weight(self, lapse: Array) -> Array:
        """(1 - e^{-rho lapse}) / rho, lapse where rho is 0; (M,)."""
        return np.where(self._undiscounted, lapse, np.expm1(self._minus_rho * lapse) * self._scale)

    def _accrue(self, lapse: Array) -> None:
        """Add the integral over `lapse` (M,) of the constant flow: (1 - e^{-rho lapse}) / rho, at each firm's own
        worth.
        """
        decay = np.expm1(self._minus_rho * lapse)
        weight = decay * self._scale
        if self._any_undiscounted:
            weight = np.where(self._undiscounted, lapse, weight)
        self.earned += self.flow * lapse
        self._owed += self._worth * weight * self.flow
        decay += 1.0
        self._worth *= decay

    def _look(self, rows: Any) -> Decision:
        """The decision of the present event, its `rows` only; pays out what accrued to those who act."""
        ticks = self._ticks
        market, firm, at = ticks.market[rows], ticks.firm[rows], ticks.at[rows]
        now = ticks.by_row(ticks.now)[rows]
        seen, posted = np.empty((self.firms, len(at))), np.empty((self.firms, len(at)))
        self.prices.reshape(-1).take(at, out=seen[0], mode="clip")
        self._posted.reshape(-1).take(at, out=posted[0], mode="clip")
        for step in range(1, self.firms):
            other = 1 - firm if self.firms == 2 else (firm + step) % self.firms
            if self._quotes.instant:
                there = other * self.markets + market
                seen[step], posted[step] = self.prices.reshape(-1)[there], self._posted.reshape(-1)[there]
            else:
                blocks = ticks.blocks if len(at) == len(ticks.at) else 0
                seen[step], posted[step] = self._quotes.see(firm, other, market, now, blocks)
        np.subtract(now, posted, out=posted)
        owed = self._owed.reshape(-1)
        profit = owed.take(at, mode="clip")
        owed[at] = 0.0
        self._worth.reshape(-1)[at] = 1.0
        first = ~self._acted.reshape(-1).take(at, mode="clip")
        return Decision(market, firm, now, seen.T, posted.T, posted[0], profit, first)

    @property
    def present(self) -> Decision:
        """The decision the markets are at."""
        if self._decision is None:
            raise SettingsError("market: not started; call reset() first")
        return self._decision
