"""Soft actor-critic (Haarnoja et al., arXiv 1812.05905) for agents that decide at irregular times, discounted or
for average reward.

Discounted: y = R + e^{-rho tau} (min Q'(o', a') - alpha log pi(a' | o')), discounts as in `ddpg`. Average reward
(Frick, arXiv 2604.15825): y = R - r tau + mean Q'(o', a') - alpha log pi, with r the profit flow each agent
believes it earns on average, moved by the mean TD error per unit of time. Then profits must be undiscounted (a
market with rho = 0). Values and the believed flow are in scaled money, what is measured of them in money.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.market.learners.algorithms import SACSettings
from offbeat.market.learners.learner import Learner, discounts
from offbeat.market.learners.networks import copied, follow, forward, frozen, stacked, trained
from offbeat.market.learners.replay import Replay

LOG_SCALE = (-5.0, 2.0)
"""Bounds of the log standard deviation before squashing."""


def log_slope(raw: Tensor) -> Tensor:
    """log(1 - tanh^2): what squashing takes from a log density."""
    return 2 * (float(np.log(2)) - raw - torch.nn.functional.softplus(-2 * raw))


class SAC(Learner):
    """`rho` (A,) discount rates, None for a fixed discount an event; of no meaning with `average_reward`."""

    def __init__(
        self, run_seeds: Sequence[int], firms: int, width: int, settings: SACSettings, rho: Tensor | None
    ) -> None:
        super().__init__(run_seeds, firms, width)
        self.settings = settings
        self.rho = None if rho is None else rho[:, None, None]
        actor_hidden = settings.actor_hidden or settings.hidden
        self.actor = trained(stacked(self.seeds("actor"), (width, *actor_hidden, 2)))
        self.critics = [trained(stacked(self.seeds("critic", k), (width + 1, *settings.hidden, 1))) for k in range(2)]
        self.target_critics = [copied(critic) for critic in self.critics]
        self.log_alpha = torch.zeros(self.agents, 1, 1).requires_grad_()
        self.flow = torch.zeros(self.agents, 1, 1)
        self.acting, self.sampling = self.chance("acting"), self.chance("sampling")
        self.optimizers["actor"] = torch.optim.Adam(self.actor, settings.actor_rate, fused=True)
        self.optimizers["critic"] = torch.optim.Adam(
            [p for c in self.critics for p in c], settings.critic_rate, fused=True
        )
        self.optimizers["temperature"] = torch.optim.Adam([self.log_alpha], settings.temperature_rate, fused=True)

    def quiet(self, observations: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.tanh(forward(self.actor, observations)[..., 0])

    def act(
        self, observations: Tensor, agents: NDArray[np.intp], elapsed: Tensor, first: Tensor, noise: Tensor
    ) -> Tensor:
        """A sample of the policy; `noise` 0 gives its centre. `elapsed` and `first` do not matter: the policy's
        noise has no memory.
        """
        del elapsed, first
        with torch.no_grad():
            out = forward(self.actor, observations[:, None])[torch.from_numpy(agents), 0]
        draw = torch.from_numpy(self.acting.normal(agents, 1)[:, 0].astype(np.float32))
        scale = out[:, 1].clamp(*LOG_SCALE).exp()
        return torch.tanh(out[:, 0] + draw * scale * (noise > 0))

    def sample(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Reparametrised actions (A, B, 1) and their log density in action space."""
        out = forward(self.actor, observation)
        centre, log_scale = out[..., :1], out[..., 1:].clamp(*LOG_SCALE)
        draw = torch.from_numpy(self.sampling.normal(slice(None), observation.shape[1]).astype(np.float32))[..., None]
        raw = centre + draw * log_scale.exp()
        normal = -0.5 * draw.square() - log_scale - 0.5 * float(np.log(2 * np.pi))
        return torch.tanh(raw), normal - log_slope(raw)

    def learn(self, replay: Replay) -> None:
        """One step of both critics, the actor, the temperature, the targets and the believed flow."""
        settings, batch = self.settings, replay.sample(self.settings.batch)
        alpha, profit = self.log_alpha.detach().exp(), settings.reward_scale * batch.profit
        with torch.no_grad():
            onward, density = self.sample(batch.following)
            there = torch.cat([batch.following, onward], -1)
            later = [forward(critic, there) for critic in self.target_critics]
            if settings.average_reward:
                target = profit - self.flow * batch.elapsed + (later[0] + later[1]) / 2 - alpha * density
            else:
                kept = discounts(batch, self.rho, settings.gamma)
                target = profit + kept * (torch.minimum(*later) - alpha * density)
        here = torch.cat([batch.observation, batch.action], -1)
        values = [forward(critic, here) for critic in self.critics]
        errors = [batch.weight * (value - target) for value in values]
        loss = sum((error.square().mean((1, 2)).sum() for error in errors), torch.zeros(()))
        self.step("critic", [p for critic in self.critics for p in critic], loss)
        unit = settings.reward_scale
        self.measure(torch.cat([value.detach() for value in values], 1) / unit, errors[0].detach() / unit)
        if settings.average_reward:
            surplus = -(errors[0] + errors[1]).detach().sum(1, keepdim=True) / 2
            span = (batch.weight * batch.elapsed).sum(1, keepdim=True).clamp_min(1e-9)
            self.flow += settings.flow_rate * surplus / span

        action, density = self.sample(batch.observation)
        both = torch.cat([batch.observation, action], -1)
        gains = [forward(frozen(critic), both) for critic in self.critics]
        gain = (gains[0] + gains[1]) / 2 if settings.average_reward else torch.minimum(*gains)
        self.step("actor", self.actor, (alpha * density - gain).mean((1, 2)).sum())
        pressure = -(self.log_alpha * (density.detach() + settings.entropy)).mean((1, 2)).sum()
        self.step("temperature", [self.log_alpha], pressure)
        for target_critic, critic in zip(self.target_critics, self.critics, strict=True):
            follow(target_critic, critic, settings.tau)

    def policy(self) -> dict[str, Tensor]:
        return {f"actor.{k}": p.detach() for k, p in enumerate(self.actor)}

    def parameters(self) -> dict[str, Tensor]:
        nets = {"actor": self.actor} | {f"critic{k}": c for k, c in enumerate(self.critics)}
        nets |= {f"target_critic{k}": c for k, c in enumerate(self.target_critics)}
        found = {f"{name}.{k}": p for name, net in nets.items() for k, p in enumerate(net)}
        return found | {"log_alpha": self.log_alpha, "flow": self.flow}
