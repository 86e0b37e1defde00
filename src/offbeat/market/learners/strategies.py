"""What learnt strategies of the repeated game amount to: greedy paths, cycles, equilibrium tests, responses to a
deviation.

Everything is exact: strategies are deterministic maps from last period's joint action to each firm's next action,
so the game is a walk on at most m^n states. Definitions as in Calvano et al., AER 110(10) 2020, section III. It
knows nothing of how they were learnt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offbeat.market.learners.sessions import Array, PriceGame

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Strategies:
    """`greedy` (K, n, m^n): action of each firm in each state; `start` (K,): the state in which the sessions ended."""

    game: PriceGame
    greedy: Index
    start: Index

    @property
    def onward(self) -> Index:
        """(K, states) the state after each state: the joint action taken in it."""
        return np.tensordot(self.greedy, self._strides(), axes=(1, 0))

    def _strides(self) -> Index:
        return np.asarray(self.game.actions ** np.arange(self.game.firms - 1, -1, -1), dtype=np.int64)

    def actions_of(self, states: Index) -> Index:
        """Joint actions (..., n) that states stand for."""
        return states[..., None] // self._strides() % self.game.actions

    def cycles(self) -> list[Index]:
        """The states each session ends up visiting for ever, in order, from `start` on."""
        onward, found = self.onward, []
        for session, state in enumerate(self.start.tolist()):
            seen: dict[int, int] = {}
            path: list[int] = []
            while state not in seen:
                seen[state] = len(path)
                path.append(state)
                state = int(onward[session, state])
            found.append(np.array(path[seen[state] :], dtype=np.int64))
        return found

    def mean_profits(self) -> Array:
        """(K, n) mean profit a period along each session's cycle."""
        return np.stack([self.game.profits[:, cycle].mean(axis=1) for cycle in self.cycles()])

    def mean_prices(self) -> Array:
        """(K, n) mean price along each session's cycle."""
        return np.stack([self.game.prices[self.actions_of(cycle)].mean(axis=0) for cycle in self.cycles()])

    def shapes(self) -> list[str]:
        """Of each session: constant symmetric, constant asymmetric, 2-cycle, or longer cycle."""
        names = []
        for cycle in self.cycles():
            if len(cycle) == 1:
                even = len(set(self.actions_of(cycle)[0].tolist())) == 1
                names.append("constant symmetric" if even else "constant asymmetric")
            else:
                names.append("2-cycle" if len(cycle) == 2 else "longer cycle")
        return names

    def values(self, discount: float, tolerance: float = 1e-10) -> Array:
        """(K, n, states) discounted profit, from the next period on, of both firms following their strategies."""
        onward = self.onward
        earned = np.moveaxis(self.game.profits[:, onward], 0, 1)
        value = np.zeros_like(earned)
        sessions = np.arange(len(onward))[:, None, None]
        firms = np.arange(self.game.firms)[None, :, None]
        bound = tolerance * (1 - discount)
        while True:
            fresh = earned + discount * value[sessions, firms, onward[:, None, :]]
            gap = float(np.abs(fresh - value).max())
            value = fresh
            if gap <= bound:
                return value

    def losses(self, discount: float) -> Array:
        """(K, n, states) share of the best value a firm loses by its greedy action, if it deviates once and then
        follows its strategy.
        """
        onward, value = self.onward, self.values(discount)
        stride, m = self._strides(), self.game.actions
        loss = np.empty_like(value)
        sessions = np.arange(len(onward))[:, None, None]
        for firm in range(self.game.firms):
            own = onward // stride[firm] % m
            would = onward[..., None] + (np.arange(m) - own[..., None]) * stride[firm]
            worth = self.game.profits[firm][would] + discount * value[sessions, firm, would]
            best = worth.max(axis=-1)
            loss[:, firm] = (best - np.take_along_axis(worth, own[..., None], axis=-1)[..., 0]) / np.abs(best)
        return loss

    def equilibrium_on_path(self, discount: float, tolerance: float = 1e-8) -> NDArray[np.bool_]:
        """(K,) whether on its cycle no firm has a profitable one-shot deviation."""
        loss = self.losses(discount)
        return np.array([bool((loss[k][:, cycle] <= tolerance).all()) for k, cycle in enumerate(self.cycles())])

    def static_reply(self, firm: int, joint: Index) -> Index:
        """The grid action that earns `firm` most in one period if the rivals play their part of the joint actions
        (...).
        """
        stride, m = self._strides()[firm], self.game.actions
        would = joint[..., None] + (np.arange(m) - (joint // stride % m)[..., None]) * stride
        return np.asarray(self.game.profits[firm][would].argmax(axis=-1))

    def response(self, periods: int = 15, deviation: int | None = None) -> Response:
        """Prices and profits after one firm deviates for one period, to the static best reply or to grid action
        `deviation`.

        Averaged first within each session over its cycle's states and over who deviates, as Calvano et al. do.
        """
        onward, stride, m, n = self.onward, self._strides(), self.game.actions, self.game.firms
        rows: list[tuple[Array, ...]] = []
        for k, cycle in enumerate(self.cycles()):
            prices, rivals, profits, gains = [], [], [], []
            for firm in range(n):
                others = [j for j in range(n) if j != firm]
                planned = onward[k, cycle]
                action = self.static_reply(firm, planned) if deviation is None else np.full(len(cycle), deviation)
                states = [cycle, planned + (action - planned // stride[firm] % m) * stride[firm]]
                path = [cycle, planned]
                for _ in range(periods - 1):
                    states.append(onward[k, states[-1]])
                    path.append(onward[k, path[-1]])
                walked, kept = np.stack(states), np.stack(path)
                prices.append(self.game.prices[self.actions_of(walked)[..., firm]].mean(axis=1))
                rivals.append(self.game.prices[self.actions_of(walked)[..., others]].mean(axis=(1, 2)))
                profits.append(self.game.profits[firm][walked].mean(axis=1))
                gains.append((self.game.profits[firm][walked] - self.game.profits[firm][kept]).mean(axis=1))
            rows.append(tuple(np.mean(part, axis=0) for part in (prices, rivals, profits, gains)))
        return Response(*(np.stack([row[i] for row in rows]) for i in range(4)))


@dataclass(frozen=True)
class Response:
    """By session and period (K, periods + 1), period 0 before the deviation: price of the deviator, mean price of
    its rivals, the deviator's profit, and that profit less what it would have earned without deviating.
    """

    deviator: Array
    rivals: Array
    profit: Array
    gain: Array

    def net_gain(self, discount: float) -> Array:
        """(K,) discounted gain from deviating over the periods followed."""
        weight = discount ** np.arange(self.gain.shape[1] - 1)
        return np.asarray((self.gain[:, 1:] * weight).sum(axis=1))
