"""Random numbers of learners, counted: the k-th number of an agent depends on its key and k alone, never on who
else is in the batch.

splitmix64 as a counter-based generator: number k is the mix of key + k * golden. The state of a stream is one
counter an agent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.eventtime.streams import stream_seed

_GOLDEN, _MIX_1, _MIX_2 = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def agent_seeds(run_seeds: list[int], firms: int, *name: str | int) -> list[int]:
    """One seed an agent, firm-major as everywhere: runs with one seed share it in every cell, so that cells compare
    in pairs.
    """
    return [stream_seed(seed, "agent", firm, *name) for firm in range(firms) for seed in run_seeds]


class Chance:
    """One stream for each of A agents, from `seeds` (A,). `count` (A,) is the whole state."""

    def __init__(self, seeds: list[int]) -> None:
        self._key = np.array(seeds, dtype=np.uint64)
        self.count = np.zeros(len(seeds), dtype=np.uint64)

    def uniform(self, agents: Any, numbers: int) -> NDArray[np.float64]:
        """The next `numbers` of each of `agents` (an index or a slice), in (0, 1): (rows, numbers). An agent may
        appear once.
        """
        step = np.arange(1, numbers + 1, dtype=np.uint64)
        z = self._key[agents][:, None] + (self.count[agents][:, None] + step) * _GOLDEN
        self.count[agents] += np.uint64(numbers)
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        z ^= z >> np.uint64(31)
        return np.asarray(((z >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)

    def normal(self, agents: Any, numbers: int) -> NDArray[np.float64]:
        """Standard normal numbers (rows, numbers), by Box and Muller."""
        pairs = -(-numbers // 2)
        u = self.uniform(agents, 2 * pairs)
        radius, angle = np.sqrt(-2.0 * np.log(u[:, :pairs])), 2.0 * np.pi * u[:, pairs:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :numbers]
