"""DDPG (Lillicrap et al., arXiv 1509.02971) for agents that decide at irregular times.

Target y = R + e^{-rho tau} Q'(o', mu'(o')) with R the discounted profit of the interval (semi-Markov), or gamma Q'
an event. `critic = "advantage-rate"` writes Q(o, a) = V(o) + w (A(o, a) - A(o, mu(o))) with w the mean wait between
decisions: one action moves the value by O(w), and a plain critic must find that against noise of fixed size
(Tallec, Blier and Ollivier, arXiv 1901.09732).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.market.learners.algorithms import DDPGSettings
from offbeat.market.learners.learner import Learner, discounts
from offbeat.market.learners.networks import Params, copied, follow, forward, frozen, stacked, trained
from offbeat.market.learners.replay import Replay
from offbeat.market.learners.wandering import Wandering


class DDPG(Learner):
    """`rho` (A,) discount rates, None for a fixed discount an event; `wait` (A,) mean time between decisions."""

    def __init__(
        self, run_seeds: Sequence[int], firms: int, width: int, settings: DDPGSettings, rho: Tensor | None, wait: Tensor
    ) -> None:
        super().__init__(run_seeds, firms, width)
        self.settings = settings
        self.rho = None if rho is None else rho[:, None, None]
        self.wait = wait[:, None, None]
        hidden = settings.hidden
        self.actor = trained(stacked(self.seeds("actor"), (width, *hidden, 1)))
        self.critic = trained(stacked(self.seeds("critic"), (width + 1, *hidden, 1)))
        self.value = (
            trained(stacked(self.seeds("value"), (width, *hidden, 1))) if settings.critic == "advantage-rate" else []
        )
        self.target_actor, self.target_critic, self.target_value = (
            copied(p) for p in (self.actor, self.critic, self.value)
        )
        self.noise = Wandering(settings.memory, self.chance("noise"))
        self.optimizers["actor"] = torch.optim.Adam(self.actor, settings.actor_rate, fused=True)
        self.optimizers["critic"] = torch.optim.Adam([*self.critic, *self.value], settings.critic_rate, fused=True)

    def quiet(self, observations: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.tanh(forward(self.actor, observations))[..., 0]

    def act(
        self, observations: Tensor, agents: NDArray[np.intp], elapsed: Tensor, first: Tensor, noise: Tensor
    ) -> Tensor:
        moved = self.quiet(observations[:, None])[:, 0][torch.from_numpy(agents)] + noise * self.noise.draw(
            agents, elapsed, first
        )
        return moved.clamp_(-1, 1)

    def worth(
        self, critic: Params, value: Params, observation: Tensor, action: Tensor, greedy: Tensor | None
    ) -> Tensor:
        """Q (A, B, 1) of `action`; `greedy` is mu(o), which the advantage-rate critic measures against (None: the
        action is greedy).
        """
        if not value:
            return forward(critic, torch.cat([observation, action], -1))
        base = forward(value, observation)
        if greedy is None:
            return base
        rate = forward(critic, torch.cat([observation, action], -1)) - forward(
            critic, torch.cat([observation, greedy], -1)
        )
        return base + self.wait * rate

    def learn(self, replay: Replay) -> None:
        """One step of every critic, every actor and every target."""
        batch = replay.sample(self.settings.batch)
        with torch.no_grad():
            greedy = torch.tanh(forward(self.actor, batch.observation)) if self.value else None
            onward = torch.tanh(forward(self.target_actor, batch.following))
            later = self.worth(self.target_critic, self.target_value, batch.following, onward, None)
            target = batch.profit + discounts(batch, self.rho, self.settings.gamma) * later
        value = self.worth(self.critic, self.value, batch.observation, batch.action, greedy)
        errors = batch.weight * (value - target)
        self.step("critic", [*self.critic, *self.value], errors.square().mean((1, 2)).sum())
        self.measure(value.detach(), errors.detach())

        action = torch.tanh(forward(self.actor, batch.observation))
        gain = forward(frozen(self.critic), torch.cat([batch.observation, action], -1))
        self.step("actor", self.actor, -gain.mean((1, 2)).sum())
        follow(self.target_actor, self.actor, self.settings.tau)
        follow(self.target_critic, self.critic, self.settings.tau)
        if self.value:
            follow(self.target_value, self.value, self.settings.tau)

    def policy(self) -> dict[str, Tensor]:
        return {f"actor.{k}": p.detach() for k, p in enumerate(self.actor)}

    def parameters(self) -> dict[str, Tensor]:
        nets = ("actor", "critic", "value", "target_actor", "target_critic", "target_value")
        return {f"{name}.{k}": p for name in nets for k, p in enumerate(getattr(self, name))} | {
            "noise": self.noise.level
        }
