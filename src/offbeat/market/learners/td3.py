"""TD3 (Fujimoto, van Hoof and Meger, arXiv 1802.09477) for agents that decide at irregular times.

Twin critics and the smaller of their targets, smoothed target actions, and an actor that moves every `delay`
updates: the published answer to the overestimation that makes DDPG's critics run away. Discounts as in `ddpg`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.market.learners.algorithms import TD3Settings
from offbeat.market.learners.learner import Learner, discounts
from offbeat.market.learners.networks import copied, follow, forward, frozen, stacked, trained
from offbeat.market.learners.replay import Replay
from offbeat.market.learners.wandering import Wandering


class TD3(Learner):
    """`rho` (A,) discount rates, None for a fixed discount an event."""

    def __init__(
        self, run_seeds: Sequence[int], firms: int, width: int, settings: TD3Settings, rho: Tensor | None
    ) -> None:
        super().__init__(run_seeds, firms, width)
        self.settings = settings
        self.rho = None if rho is None else rho[:, None, None]
        self.actor = trained(stacked(self.seeds("actor"), (width, *settings.hidden, 1)))
        self.critics = [trained(stacked(self.seeds("critic", k), (width + 1, *settings.hidden, 1))) for k in range(2)]
        self.target_actor, self.target_critics = copied(self.actor), [copied(critic) for critic in self.critics]
        self.noise = Wandering(settings.memory, self.chance("noise"))
        self.smoothing = self.chance("smoothing")
        self.learnt = torch.zeros((), dtype=torch.int64)
        self.optimizers["actor"] = torch.optim.Adam(self.actor, settings.actor_rate, fused=True)
        self.optimizers["critic"] = torch.optim.Adam(
            [p for c in self.critics for p in c], settings.critic_rate, fused=True
        )

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

    def learn(self, replay: Replay) -> None:
        """One step of both critics; every `delay`-th time one of the actor and the targets."""
        settings, batch = self.settings, replay.sample(self.settings.batch)
        with torch.no_grad():
            jitter = torch.from_numpy(self.smoothing.normal(slice(None), settings.batch).astype(np.float32))[..., None]
            jitter = (settings.smoothing * jitter).clamp_(-settings.clip, settings.clip)
            onward = (torch.tanh(forward(self.target_actor, batch.following)) + jitter).clamp_(-1, 1)
            there = torch.cat([batch.following, onward], -1)
            later = torch.minimum(*(forward(critic, there) for critic in self.target_critics))
            target = batch.profit + discounts(batch, self.rho, settings.gamma) * later
        here = torch.cat([batch.observation, batch.action], -1)
        values = [forward(critic, here) for critic in self.critics]
        errors = [batch.weight * (value - target) for value in values]
        loss = sum((error.square().mean((1, 2)).sum() for error in errors), torch.zeros(()))
        self.step("critic", [p for critic in self.critics for p in critic], loss)
        self.measure(torch.cat([value.detach() for value in values], 1), errors[0].detach())
        self.learnt += 1
        if int(self.learnt) % settings.delay:
            return
        action = torch.tanh(forward(self.actor, batch.observation))
        gain = forward(frozen(self.critics[0]), torch.cat([batch.observation, action], -1))
        self.step("actor", self.actor, -gain.mean((1, 2)).sum())
        follow(self.target_actor, self.actor, settings.tau)
        for target_critic, critic in zip(self.target_critics, self.critics, strict=True):
            follow(target_critic, critic, settings.tau)

    def policy(self) -> dict[str, Tensor]:
        return {f"actor.{k}": p.detach() for k, p in enumerate(self.actor)}

    def parameters(self) -> dict[str, Tensor]:
        nets = {"actor": self.actor, "target_actor": self.target_actor}
        nets |= {f"critic{k}": c for k, c in enumerate(self.critics)}
        nets |= {f"target_critic{k}": c for k, c in enumerate(self.target_critics)}
        found = {f"{name}.{k}": p for name, net in nets.items() for k, p in enumerate(net)}
        return found | {"noise": self.noise.level, "learnt": self.learnt}
