"""Experience of all agents. *Row k of an agent is its k-th decision: what it saw, did, and earned since its
decision before.*

A transition is two rows in succession: (o_k, a_k, R_{k+1}, tau_{k+1}, o_{k+1}); where row k + 1 opens an episode
there is none, and its weight is 0. Agents decide at different times, so each has its own count of rows; old rows
are overwritten at `capacity`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offbeat.market.learners.chance import Chance


@dataclass(frozen=True, slots=True)
class Batch:
    """B transitions of each of A agents, float32.

    observation, following (A, B, d); action (A, B, 1) in [-1, 1]; profit (A, B, 1) money; elapsed (A, B, 1) units
    of time; weight (A, B, 1): 1 for a transition, 0 for a pair that is none.
    """

    observation: Tensor
    action: Tensor
    profit: Tensor
    elapsed: Tensor
    following: Tensor
    weight: Tensor


class Replay:
    """Rows (A, capacity, d + 4): observation, action, profit, elapsed, whether the row opens an episode."""

    def __init__(self, agents: int, width: int, capacity: int, chance: Chance) -> None:
        self.width, self.capacity, self.chance = width, capacity, chance
        self.count = np.zeros(agents, dtype=np.int64)
        self.rows = torch.zeros(agents, capacity, width + 4)
        self._flat = self.rows.view(agents * capacity, width + 4)
        self._offset = np.arange(agents)[:, None] * capacity

    def add(self, agents: np.ndarray, rows: Tensor) -> None:
        """Append one row (rows, d + 4) to each of `agents`."""
        place = torch.from_numpy(agents * self.capacity + self.count[agents] % self.capacity)
        self._flat[place] = rows
        self.count[agents] += 1

    def sample(self, size: int) -> Batch:
        """`size` transitions of every agent, uniform over what it has; weight 0 where it has none."""
        d = self.width
        oldest = np.maximum(self.count - self.capacity, 0)
        pairs = np.maximum(self.count - 1 - oldest, 1)[:, None]
        k = oldest[:, None] + np.minimum((self.chance.uniform(slice(None), size) * pairs).astype(np.int64), pairs - 1)
        first = torch.from_numpy(k % self.capacity + self._offset)
        second = torch.from_numpy((k + 1) % self.capacity + self._offset)
        before, after = self._flat[first], self._flat[second]
        weight = 1.0 - after[..., d + 3 :]
        weight *= torch.from_numpy((self.count > 1).astype(np.float32))[:, None, None]
        return Batch(
            before[..., :d],
            before[..., d : d + 1],
            after[..., d + 1 : d + 2],
            after[..., d + 2 : d + 3],
            after[..., :d],
            weight,
        )

    def latest(self, size: int) -> tuple[Tensor, Tensor]:
        """The last `size` rows of every agent in order (A, size, d + 4), and which of them exist (A, size)."""
        k = self.count[:, None] - size + np.arange(size)
        there = k >= np.maximum(self.count - self.capacity, 0)[:, None]
        place = np.where(there, k, 0) % self.capacity + self._offset
        return self._flat[torch.from_numpy(place)], torch.from_numpy(there)
