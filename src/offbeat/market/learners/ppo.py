"""PPO (Schulman et al., arXiv 1707.06347) for agents that decide at irregular times.

Every `horizon` calls each agent learns from its own decisions since the last update, however many they are.
Advantages are GAE with the discount of each interval: A_k = d_k + lambda e^{-rho tau_k+1} A_k+1, d_k = R_k+1 +
e^{-rho tau_k+1} V(o_k+1) - V(o_k); lambda is per decision. The policy does not change while it samples, so
behaviour log-probs are computed when learning begins, not stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.market.learners.algorithms import PPOSettings
from offbeat.market.learners.learner import Learner
from offbeat.market.learners.networks import forward, stacked, trained
from offbeat.market.learners.replay import Replay


class PPO(Learner):
    """`rho` (A,) discount rates, None for a fixed discount an event. Gaussian policy, clipped to the box when
    posted.
    """

    warms_up = False

    def __init__(
        self, run_seeds: Sequence[int], firms: int, width: int, settings: PPOSettings, rho: Tensor | None
    ) -> None:
        super().__init__(run_seeds, firms, width)
        self.settings, self.rho = settings, rho
        self.actor = trained(stacked(self.seeds("actor"), (width, *settings.hidden, 1)))
        self.log_scale = torch.full((self.agents, 1, 1), float(np.log(settings.scale))).requires_grad_()
        self.value = trained(stacked(self.seeds("value"), (width, *settings.hidden, 1)))
        self.acting = self.chance("acting")
        self.calls = torch.zeros((), dtype=torch.int64)
        self.learnt = torch.zeros(self.agents, dtype=torch.int64)
        self.optimizers["actor"] = torch.optim.Adam([*self.actor, self.log_scale], settings.actor_rate, fused=True)
        self.optimizers["value"] = torch.optim.Adam(self.value, settings.critic_rate, fused=True)

    def quiet(self, observations: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.tanh(forward(self.actor, observations))[..., 0]

    def act(
        self, observations: Tensor, agents: NDArray[np.intp], elapsed: Tensor, first: Tensor, noise: Tensor
    ) -> Tensor:
        """A sample of the policy, unclipped; `noise` 0 gives its centre."""
        del elapsed, first
        at = torch.from_numpy(agents)
        draw = torch.from_numpy(self.acting.normal(agents, 1)[:, 0].astype(np.float32))
        scale = self.log_scale.detach()[at, 0, 0].exp()
        return self.quiet(observations[:, None])[:, 0][at] + scale * draw * (noise > 0)

    def log_prob(self, observation: Tensor, action: Tensor) -> Tensor:
        """Log density (A, B, 1) of `action` under the present policy, without the constant."""
        centre = torch.tanh(forward(self.actor, observation))
        return -0.5 * ((action - centre) / self.log_scale.exp()).square() - self.log_scale

    def advantages(self, values: Tensor, profit: Tensor, kept: Tensor, first: Tensor) -> Tensor:
        """GAE (A, N-1, 1) from values (A, N, 1) and, by row, profit, discount and whether it opens an episode (A,
        N, 1).
        """
        found = torch.zeros_like(values[:, 1:])
        running = torch.zeros_like(values[:, 0])
        for k in range(values.shape[1] - 2, -1, -1):
            error = profit[:, k + 1] + kept[:, k + 1] * values[:, k + 1] - values[:, k]
            running = (error + self.settings.lam * kept[:, k + 1] * running) * (1 - first[:, k + 1])
            found[:, k] = running
        return found

    def learn(self, replay: Replay) -> None:
        """Count calls; every `horizon`-th time `epochs` steps on the decisions since the last update."""
        self.calls += 1
        if int(self.calls) % self.settings.horizon:
            return
        counts = torch.from_numpy(replay.count)
        size = min(int((counts - self.learnt).max()), replay.capacity)
        rows, there = replay.latest(max(size, 2))
        newest = counts[:, None] - rows.shape[1] + torch.arange(rows.shape[1])
        there &= newest >= self.learnt[:, None]  # older rows were acted on by an older policy
        self.learnt = counts.clone()
        d = self.width
        observation, action = rows[..., :d], rows[..., d : d + 1]
        profit, elapsed, first = (rows[..., d + k : d + k + 1] for k in (1, 2, 3))
        weight = (there[:, :-1] & there[:, 1:])[..., None] * (1 - first[:, 1:])
        kept = (
            torch.full_like(elapsed, self.settings.gamma)
            if self.rho is None
            else torch.exp(-self.rho[:, None, None] * elapsed)
        )
        with torch.no_grad():
            values = forward(self.value, observation)
            gae = self.advantages(values, profit, kept, torch.maximum(first, 1 - there[..., None].float()))
            returns = gae + values[:, :-1]
            number = weight.sum(1, keepdim=True).clamp_min(1)
            mean = (weight * gae).sum(1, keepdim=True) / number
            spread = ((weight * (gae - mean).square()).sum(1, keepdim=True) / number).sqrt()
            scaled = (gae - mean) / (spread + 1e-8)
            behaviour = self.log_prob(observation[:, :-1], action[:, :-1])
        for _ in range(self.settings.epochs):
            target = self.log_prob(observation[:, :-1], action[:, :-1])
            ratio = (target - behaviour).exp()
            clipped = ratio.clamp(1 - self.settings.clip, 1 + self.settings.clip)
            gain = torch.minimum(ratio * scaled, clipped * scaled) + self.settings.entropy * self.log_scale
            self.step("actor", [*self.actor, self.log_scale], -((weight * gain).sum((1, 2)) / number[:, 0, 0]).sum())
            value = forward(self.value, observation[:, :-1])
            errors = weight * (value - returns)
            self.step("value", self.value, (errors.square().sum((1, 2)) / number[:, 0, 0]).sum())
        self.measure((weight * value).detach(), errors.detach())

    def policy(self) -> dict[str, Tensor]:
        return {f"actor.{k}": p.detach() for k, p in enumerate(self.actor)}

    def parameters(self) -> dict[str, Tensor]:
        found = {f"actor.{k}": p for k, p in enumerate(self.actor)} | {
            f"value.{k}": p for k, p in enumerate(self.value)
        }
        return found | {"log_scale": self.log_scale, "calls": self.calls, "learnt": self.learnt}
