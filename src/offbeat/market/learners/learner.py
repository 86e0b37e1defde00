"""What the training loop asks of an algorithm, and what every algorithm keeps: measures of its critic, tensors to
save.

An algorithm trains A agents at once; actions are in [-1, 1], the ends of the price box. It knows neither market nor
prices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.align.rule import AlignSettings
from offbeat.market.learners.alignment import StackedAlignment
from offbeat.market.learners.chance import Chance, agent_seeds
from offbeat.market.learners.replay import Batch, Replay


class Learner(ABC):
    """A agents of one algorithm. `critic_max`, `critic_loss` (A,): largest |Q| and summed mean squared TD error since
    `fresh_measures`, over `updates` (A,).

    `warms_up`: whether it first acts at random and learns nothing.
    """

    warms_up = True

    def __init__(self, run_seeds: Sequence[int], firms: int, width: int) -> None:
        self.run_seeds, self.firms, self.width = list(run_seeds), firms, width
        self.agents = firms * len(self.run_seeds)
        self.alignments: dict[str, StackedAlignment] = {}
        self._align: AlignSettings | None = None
        self.chances: dict[str, Chance] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.roaming = self.chance("roaming")
        self.critic_max, self.critic_loss, self.updates = (torch.zeros(self.agents) for _ in range(3))

    def seeds(self, *name: str | int) -> list[int]:
        """One seed an agent for the purpose `name`."""
        return agent_seeds(self.run_seeds, self.firms, *name)

    def chance(self, name: str) -> Chance:
        """A new saved stream for the purpose `name`."""
        self.chances[name] = Chance(self.seeds(name))
        return self.chances[name]

    @abstractmethod
    def quiet(self, observations: Tensor) -> Tensor:
        """The learnt policy without exploration: (A, B, d) -> (A, B)."""

    @abstractmethod
    def act(
        self, observations: Tensor, agents: NDArray[np.intp], elapsed: Tensor, first: Tensor, noise: Tensor
    ) -> Tensor:
        """Actions of `agents` (rows,) with exploration of scale `noise`; observations (A, d) of all; elapsed,
        first, noise (rows,).
        """

    def roam(self, agents: NDArray[np.intp]) -> Tensor:
        """Actions of `agents` (rows,) before anything is learnt: uniform."""
        return torch.from_numpy((2.0 * self.roaming.uniform(agents, 1)[:, 0] - 1.0).astype(np.float32))

    def witness(
        self, agents: NDArray[np.intp], observations: Tensor, profit: Tensor, elapsed: Tensor, first: Tensor
    ) -> None:
        """What `agents` (rows,) see and earned, before they act on it: for algorithms that learn at every decision."""
        del agents, observations, profit, elapsed, first

    @abstractmethod
    def learn(self, replay: Replay) -> None:
        """One update of every agent."""

    @abstractmethod
    def policy(self) -> dict[str, Tensor]:
        """The tensors (A, ...) that `quiet` needs, by name."""

    @abstractmethod
    def parameters(self) -> dict[str, Tensor]:
        """Every tensor that learning changes, optimizers' apart."""

    def align(self, settings: AlignSettings) -> None:
        """Attach gradient alignment control to every network, before the first update. Mode `off` attaches nothing."""
        self._align = None if settings.mode == "off" else settings

    def step(self, network: str, params: Sequence[Tensor], loss: Tensor) -> None:
        """One optimizer step of `network` on the summed loss of all agents."""
        gradients: Sequence[Tensor] = torch.autograd.grad(loss, params)
        skipped = torch.zeros(0, dtype=torch.int64)
        if self._align is not None:
            alignment = self.alignments.setdefault(network, StackedAlignment(self._align, self.agents))
            gradients, skipped = alignment.control(gradients)
        for p, g in zip(params, gradients, strict=True):
            p.grad = g
        optimizer = self.optimizers[network]
        moved = [p.detach() for p in params]
        moved += [m for p in params for m in optimizer.state[p].values() if m.dim()]
        before = [m[skipped] for m in moved] if len(skipped) else []
        optimizer.step()
        for m, old in zip(moved, before, strict=False):
            m[skipped] = old

    def measure(self, values: Tensor, errors: Tensor) -> None:
        """Note critic values and TD errors (A, B, 1) of a training batch."""
        self.critic_max = torch.maximum(self.critic_max, values.abs().amax((1, 2)).nan_to_num(nan=torch.inf))
        self.critic_loss += errors.square().mean((1, 2))
        self.updates += 1

    def fresh_measures(self) -> None:
        """Begin a new window."""
        self.critic_max, self.critic_loss, self.updates = (torch.zeros(self.agents) for _ in range(3))

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on, by name; views, not copies."""
        found = {f"parameter.{name}": p.detach() for name, p in self.parameters().items()}
        for name, chance in self.chances.items():
            found[f"chance.{name}"] = torch.from_numpy(chance.count.view(np.int64))
        for name, optimizer in self.optimizers.items():
            for k, p in enumerate(optimizer.param_groups[0]["params"]):
                for key, value in sorted(optimizer.state[p].items()):
                    found[f"optimizer.{name}.{k}.{key}"] = value
        for name, alignment in self.alignments.items():
            found |= {f"alignment.{name}.{key}": value for key, value in alignment.state().items()}
        return found

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Take up what `state` gave."""
        for name, p in self.parameters().items():
            p.detach().copy_(saved[f"parameter.{name}"])
        for name, chance in self.chances.items():
            chance.count = saved[f"chance.{name}"].numpy().view(np.uint64).copy()
        for name, optimizer in self.optimizers.items():
            for k, p in enumerate(optimizer.param_groups[0]["params"]):
                optimizer.state[p] = _below(f"optimizer.{name}.{k}.", saved)
        for name in self.optimizers:
            if self._align is not None and (mine := _below(f"alignment.{name}.", saved)):
                self.alignments[name] = StackedAlignment(self._align, self.agents)
                self.alignments[name].restore(mine)


def _below(prefix: str, saved: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor.clone() for name, tensor in saved.items() if name.startswith(prefix)}


def discounts(batch: Batch, rho: Tensor | None, gamma: float) -> Tensor:
    """What the value after a transition is worth (A, B, 1): e^{-rho tau} with rho (A, 1, 1), or `gamma` an event
    where rho is None.
    """
    return torch.full_like(batch.elapsed, gamma) if rho is None else torch.exp(-rho * batch.elapsed)
