"""An industry: a demand model and the firms' costs. Prices in, profit flow (money per unit of time) out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from offbeat.errors import SettingsError
from offbeat.market.demand import Array, Demand, Logit


@dataclass(frozen=True)
class Industry:
    """`cost` is each firm's constant unit cost. Default: Calvano et al. 2020 (logit, a = 2, mu = .25, a_0 = 0, c =
    1).
    """

    demand: Demand = field(default_factory=Logit)
    cost: tuple[float, ...] = (1.0, 1.0)

    def __post_init__(self) -> None:
        if len(self.cost) != self.demand.firms:
            raise SettingsError(f"cost: {len(self.cost)} costs for {self.demand.firms} firms; give one for each firm")
        for cost in self.cost:
            if not (np.isfinite(cost) and cost >= 0):
                raise SettingsError(f"cost: {cost} must be a finite number, 0 or more")

    @property
    def firms(self) -> int:
        """Number of firms n."""
        return self.demand.firms

    def flow(self, prices: Array, level: Array | float = 0.0) -> Array:
        """Profit flow (p_i - c_i) q_i per unit of time; `prices` and result (n, ...), `level` a demand shock's
        state.
        """
        margin = prices - np.asarray(self.cost).reshape(-1, *([1] * (prices.ndim - 1)))
        margin *= self.demand.quantities(prices, level)
        return np.asarray(margin)


def calvano(firms: int = 2) -> Industry:
    """The field's standard industry with `firms` equal firms."""
    return Industry(Logit((2.0,) * firms), (1.0,) * firms)
