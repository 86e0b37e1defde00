"""Tabular Q-learning on a price grid in continuous time: the state is the grid point of every price seen.

At each decision, Q(s, a) <- (1 - alpha) Q(s, a) + alpha (R + e^{-rho tau} max Q(s', .)) for the action before; a
semi-Markov form of Calvano et al. (AER 110(10) 2020), whose repeated game it is under a common clock with no
latency. Exploration per unit of time as in `dqn`. For thousands of sessions of the repeated game itself use
`sessions`. Values start at `start`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.errors import SettingsError
from offbeat.market.learners.algorithms import QLearningSettings
from offbeat.market.learners.dqn import explores
from offbeat.market.learners.learner import Learner
from offbeat.market.learners.replay import Replay

MOST_ENTRIES = 200_000_000


class QLearning(Learner):
    """`rho` (A,) discount rates, None for a fixed discount an event; `seen` prices are the state, all firms' where
    None. `table` (A, prices^seen, prices).
    """

    warms_up = False

    def __init__(
        self,
        run_seeds: Sequence[int],
        firms: int,
        width: int,
        settings: QLearningSettings,
        rho: Tensor | None,
        seen: int | None = None,
    ) -> None:
        super().__init__(run_seeds, firms, width)
        self.settings, self.rho = settings, rho
        self.seen = firms if seen is None else seen
        states = settings.prices**self.seen
        if self.agents * states * settings.prices > MOST_ENTRIES:
            raise SettingsError(
                f"learner.prices: {settings.prices} prices and {self.seen} firms make tables too large; take fewer"
            )
        self.table = torch.full((self.agents, states, settings.prices), settings.start, dtype=torch.float64)
        self.state_now = torch.zeros(self.agents, dtype=torch.int64)
        self.action_now = torch.zeros(self.agents, dtype=torch.int64)
        self.exploring = self.chance("exploring")

    def states(self, observations: Tensor) -> Tensor:
        """The state of observations (..., d >= n) whose first `seen` columns are prices in [-1, 1], own first."""
        m = self.settings.prices
        place = ((observations[..., : self.seen].clamp(-1, 1) + 1) * ((m - 1) / 2)).round().long()
        return (place * m ** torch.arange(self.seen - 1, -1, -1)).sum(-1)

    def quiet(self, observations: Tensor) -> Tensor:
        agents = torch.arange(self.agents)[:, None]
        return self.table[agents, self.states(observations)].argmax(-1) * (2.0 / (self.settings.prices - 1)) - 1.0

    def witness(
        self, agents: NDArray[np.intp], observations: Tensor, profit: Tensor, elapsed: Tensor, first: Tensor
    ) -> None:
        """Learn from the interval that ends with this decision."""
        at, here = torch.from_numpy(agents), self.states(observations)
        kept = torch.full_like(elapsed, self.settings.gamma) if self.rho is None else torch.exp(-self.rho[at] * elapsed)
        target = profit.double() + kept.double() * self.table[at, here].amax(-1)
        before, action = self.state_now[at], self.action_now[at]
        error = torch.where(first > 0, 0.0, target - self.table[at, before, action])
        self.table[at, before, action] += self.settings.alpha * error
        self.state_now[at] = here
        self.critic_max[at] = torch.maximum(self.critic_max[at], self.table[at, before].abs().amax(-1).float())
        self.critic_loss[at] += error.square().float()
        self.updates[at] += 1

    def act(
        self, observations: Tensor, agents: NDArray[np.intp], elapsed: Tensor, first: Tensor, noise: Tensor
    ) -> Tensor:
        at, m = torch.from_numpy(agents), self.settings.prices
        draws = self.exploring.uniform(agents, 2)
        other = torch.from_numpy((draws[:, 1] * m).astype(np.int64))
        best = self.table[at, self.states(observations[at])].argmax(-1)
        self.action_now[at] = torch.where(explores(draws[:, 0], noise, elapsed, first), other, best)
        return self.action_now[at] * (2.0 / (m - 1)) - 1.0

    def learn(self, replay: Replay) -> None:
        """Nothing: it has learnt at every decision."""

    def policy(self) -> dict[str, Tensor]:
        return {"table": self.table}

    def parameters(self) -> dict[str, Tensor]:
        return {"table": self.table, "state_now": self.state_now, "action_now": self.action_now}
