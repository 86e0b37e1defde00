"""A scenario: everything about a market except how many, which seed and who plays. Tests open it again and again."""

from __future__ import annotations

from dataclasses import dataclass, field

from offbeat.market.clocks import Clock
from offbeat.market.demand import Array
from offbeat.market.industry import Industry
from offbeat.market.market import RHO, Market
from offbeat.market.quotes import Latency
from offbeat.market.shocks import Shocks


@dataclass(frozen=True)
class Scenario:
    """`rho` per unit of time; `box` (lowest, highest) price; `horizon` units of time that an episode lasts."""

    industry: Industry = field(default_factory=Industry)
    clock: Clock = field(default_factory=lambda: Clock.poisson(1.0, 1.0))
    latency: Latency = field(default_factory=Latency)
    rho: float = RHO
    box: tuple[float, float] = (1.0, 2.5)
    horizon: float = 100.0

    def open(
        self,
        markets: int,
        seed: int,
        *,
        initial: Array | None = None,
        shocks: Shocks | None = None,
        horizon: float | None = None,
    ) -> Market:
        """Markets of this scenario. Under one seed the clocks tick alike whatever is played: paths can be compared in
        pairs.
        """
        return Market(
            self.industry,
            markets,
            self.clock,
            latency=self.latency,
            rho=self.rho,
            box=self.box,
            initial=initial,
            shocks=shocks,
            horizon=horizon,
            seed=seed,
        )
