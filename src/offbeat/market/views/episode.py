"""One market played to a horizon, in the terms of the views: who acts, what each firm knows, what each is paid.

A firm is paid at its own decisions, the exact discounted profit since the one before; at the horizon all are paid what
is still owed. *No firm learns anything between its own decisions.* It knows neither PettingZoo nor Gymnasium.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.market.demand import Array
from offbeat.market.market import Decision, Market
from offbeat.market.scenario import Scenario


class Episode:
    """`acting`: firms to act now; `known` (n, 2n): seen prices, then their ages, at each firm's last decision; `paid`
    (n,): by the last step; `over`: the horizon is reached."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._horizon = scenario.horizon
        self._market: Market = scenario.open(1, seed, horizon=scenario.horizon)
        self.firms = self._market.firms
        self.paid = np.zeros(self.firms)
        self._started = np.zeros(self.firms, dtype=bool)
        decision = self._market.reset()
        seen = np.stack([np.roll(self._market.prices[:, 0], -i) for i in range(self.firms)])
        self.known: Array = np.concatenate([seen, np.zeros_like(seen)], axis=1)
        self._take(decision)

    def post(self, prices: dict[int, float]) -> None:
        """Post the price of every acting firm and move to the next decision."""
        self._market.step(np.array([prices[i] for i in self.acting], dtype=np.float64))
        self._take(self._market.present)

    def info(self, firm: int) -> dict[str, Any]:
        """For diagnostics, not for policies: time, true prices of all firms, time since the firm's last decision."""
        return {
            "time": min(float(self._market.now[0]), self._horizon),
            "prices": self._market.prices[:, 0].tolist(),
            "acts": firm in self.acting,
            "elapsed": float(self.known[firm, self.firms]),
        }

    def _take(self, decision: Decision) -> None:
        self.over = bool(decision.now[0] >= self._horizon)
        self.paid = np.zeros(self.firms)
        if self.over:
            self.acting: list[int] = []
            self.paid = np.where(self._started, self._market.closing[:, 0], 0.0)
            return
        self.acting = [int(i) for i in decision.firm]
        for row, firm in enumerate(self.acting):
            self.known[firm] = np.concatenate([decision.seen[row], decision.age[row]])
            self.paid[firm] = 0.0 if decision.first[row] else decision.profit[row]
            self._started[firm] = True
