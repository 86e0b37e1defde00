"""DQN (Mnih et al., Nature 518, 2015) on a price grid, for agents that decide at irregular times.

y = R + e^{-rho tau} max_a Q'(o', a), discounts as in `ddpg`. Exploration is per unit of time: a decision explores
with probability 1 - (1 - epsilon)^elapsed, so that epsilon is the chance in one unit of time however often a firm
decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.market.learners.algorithms import DQNSettings
from offbeat.market.learners.learner import Learner, discounts
from offbeat.market.learners.networks import copied, follow, forward, stacked, trained
from offbeat.market.learners.replay import Replay


def explores(chance: NDArray[np.float64], epsilon: Tensor, elapsed: Tensor, first: Tensor) -> Tensor:
    """Which decisions explore (rows,), given uniform numbers `chance` and `epsilon` (rows,)."""
    span = torch.where(first > 0, 1.0, elapsed)
    return torch.from_numpy(chance.astype(np.float32)) < 1 - (1 - epsilon.clamp(0, 1)) ** span


class DQN(Learner):
    """`rho` (A,) discount rates, None for a fixed discount an event."""

    def __init__(
        self, run_seeds: Sequence[int], firms: int, width: int, settings: DQNSettings, rho: Tensor | None
    ) -> None:
        super().__init__(run_seeds, firms, width)
        self.settings = settings
        self.rho = None if rho is None else rho[:, None, None]
        self.critic = trained(stacked(self.seeds("critic"), (width, *settings.hidden, settings.prices)))
        self.target = copied(self.critic)
        self.exploring = self.chance("exploring")
        self.optimizers["critic"] = torch.optim.Adam(self.critic, settings.rate, fused=True)

    def quiet(self, observations: Tensor) -> Tensor:
        with torch.no_grad():
            best = forward(self.critic, observations).argmax(-1)
        return best * (2.0 / (self.settings.prices - 1)) - 1.0

    def act(
        self, observations: Tensor, agents: NDArray[np.intp], elapsed: Tensor, first: Tensor, noise: Tensor
    ) -> Tensor:
        draws = self.exploring.uniform(agents, 2)
        other = torch.from_numpy((draws[:, 1] * self.settings.prices).astype(np.float32)).floor()
        anywhere = other * (2.0 / (self.settings.prices - 1)) - 1.0
        return torch.where(
            explores(draws[:, 0], noise, elapsed, first),
            anywhere,
            self.quiet(observations[:, None])[:, 0][torch.from_numpy(agents)],
        )

    def roam(self, agents: NDArray[np.intp]) -> Tensor:
        m = self.settings.prices
        place = (self.roaming.uniform(agents, 1)[:, 0] * m).astype(np.int64)
        return torch.from_numpy((place * (2.0 / (m - 1)) - 1.0).astype(np.float32))

    def learn(self, replay: Replay) -> None:
        """One step of every critic and its target."""
        batch = replay.sample(self.settings.batch)
        with torch.no_grad():
            later = forward(self.target, batch.following).amax(-1, keepdim=True)
            target = batch.profit + discounts(batch, self.rho, self.settings.gamma) * later
        place = ((batch.action + 1) * ((self.settings.prices - 1) / 2)).round().long()
        value = forward(self.critic, batch.observation).gather(-1, place)
        errors = batch.weight * (value - target)
        self.step("critic", self.critic, errors.square().mean((1, 2)).sum())
        self.measure(value.detach(), errors.detach())
        follow(self.target, self.critic, self.settings.tau)

    def policy(self) -> dict[str, Tensor]:
        return {f"critic.{k}": p.detach() for k, p in enumerate(self.critic)}

    def parameters(self) -> dict[str, Tensor]:
        nets = {"critic": self.critic, "target": self.target}
        return {f"{name}.{k}": p for name, net in nets.items() for k, p in enumerate(net)}
