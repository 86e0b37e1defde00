"""Group-relative advantages: a reward counts by how much it beats its siblings from the same prompt.

*Zero-sum invariant*: the advantages of a group add up to 0, and a group whose rewards are all equal gives
exactly 0 everywhere: it says nothing about which response is better. Plain floats; knows no tensor and no token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from offbeat.errors import InvariantError

EPSILON = 1e-6
"""Added to the standard deviation, in units of reward."""


def group_advantages(rewards: Sequence[float], normalise: bool = True) -> list[float]:
    """Advantages [G] of the rewards [G] of one group.

    A_i = r_i - mean(r), divided by (std(r) + EPSILON) where `normalise` (GRPO: DeepSeekMath, arXiv 2402.03300,
    section 4.1.2). std is the sample standard deviation (divisor G - 1), as in TRL and verl.
    Raises InvariantError for an empty group or a reward that is not finite.
    """
    if not rewards:
        raise InvariantError("a group without rewards has no advantage")
    for reward in rewards:
        if not math.isfinite(reward):
            raise InvariantError(f"reward {reward} is not finite; an advantage cannot be made of it")
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not normalise:
        return centred
    deviation = math.sqrt(math.fsum(c * c for c in centred) / (len(rewards) - 1))
    return [c / (deviation + EPSILON) for c in centred]


def is_degenerate(rewards: Sequence[float]) -> bool:
    """True where all rewards [G] are equal, so that the group cannot move the policy."""
    return min(rewards) == max(rewards)
