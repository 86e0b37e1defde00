"""Group-relative advantage as DeepSeekMath writes it: (r_i - mean(r)) / std(r)."""

from __future__ import annotations

import math


def advantages(rewards: list[float], normalise: bool, epsilon: float) -> list[float]:
    total = 0.0
    for reward in rewards:
        total += reward
    mean = total / len(rewards)
    squares = 0.0
    for reward in rewards:
        squares += (reward - mean) ** 2
    if not normalise:
        return [reward - mean for reward in rewards]
    std = math.sqrt(squares / (len(rewards) - 1))
    return [(reward - mean) / (std + epsilon) for reward in rewards]
