"""Exploration noise of continuous prices: an Ornstein-Uhlenbeck process in time, not in events.

A firm that reprices ten times as often must not explore ten times as fast: over `elapsed` units of time the noise
forgets e^{-elapsed / memory} of itself and keeps variance 1. `memory` 0 is independent noise at every decision.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.market.learners.chance import Chance


class Wandering:
    """Noise of unit variance for A agents; `level` (A,) is its state."""

    def __init__(self, memory: float, chance: Chance) -> None:
        self.memory, self.chance = memory, chance
        self.level = torch.zeros(len(chance.count))

    def draw(self, agents: NDArray[np.intp], elapsed: Tensor, first: Tensor) -> Tensor:
        """The noise of `agents` (rows,) after `elapsed` (rows,) units of time; stationary anew where `first`."""
        fresh = torch.from_numpy(self.chance.normal(agents, 1)[:, 0].astype(np.float32))
        kept = torch.exp(-elapsed / self.memory) if self.memory > 0 else torch.zeros_like(elapsed)
        kept = torch.where(first > 0, 0.0, kept)
        at = torch.from_numpy(agents)
        self.level[at] = kept * self.level[at] + torch.sqrt(1 - kept * kept) * fresh
        return self.level[at]
