"""What the peak learning rate is multiplied by: floats in, floats out.

Knows no optimizer and no trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def scheduled_share(version: int, warmup: int, iterations: int, final: float) -> float:
    """Linear warm-up over `warmup` iterations times linear decay to `final` at the last of `iterations`."""
    share = min(1.0, (version + 1) / warmup) if warmup else 1.0
    return share * (1 - (1 - final) * min(1.0, version / max(1, iterations - 1)))


def effective_sample_size(log_ratios: Sequence[float]) -> float:
    """(sum w)^2 / (B sum w^2) in [1/B, 1], w = exp(log ratio [B]) of whole trajectories, target / behaviour, unclipped.

    1 where all ratios are equal. VCPO's rho_ess, arXiv 2602.17616. 1/B where a ratio is not a number or infinite:
    then one trajectory is all that counts. 1 for no trajectory at all or where all ratios are 0.
    """
    top = max(log_ratios, default=-math.inf)
    if top == -math.inf:
        return 1.0
    if not all(ratio < math.inf for ratio in log_ratios):
        return 1.0 / len(log_ratios)
    weights = [math.exp(ratio - top) for ratio in log_ratios]
    return math.fsum(weights) ** 2 / (len(weights) * math.fsum(w * w for w in weights))


def ess_scale(ess: float, reference: float) -> float:
    """sqrt(min(1, ess / reference)): VCPO's step scaling (arXiv 2602.17616), both in [0, 1]."""
    return math.sqrt(min(1.0, ess / reference))


def staleness_scale(staleness: float) -> float:
    """1 / max(1, staleness), staleness the mean of an update's trajectories in publishes.

    Staleness-aware SGD (arXiv 1511.05950) divides the rate of each gradient by its age; an update of ours is one
    gradient of trajectories of several ages, so it is divided by their mean.
    """
    return 1.0 / max(1.0, staleness)
