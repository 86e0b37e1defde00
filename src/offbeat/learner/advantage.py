"""Group-relative advantages: a reward counts by how much it beats its siblings from the same prompt.

*Zero-sum invariant*: with the group's mean or leave-one-out as baseline the advantages of a group add up to 0. With any
baseline but none, a group whose rewards are all equal gives exactly 0 everywhere: it says nothing about which
response is better.
Plain floats; knows no tensor and no token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from offbeat.errors import InvariantError

EPSILON = 1e-6
"""Added to the standard deviation, in units of reward."""


Baseline = Literal["group-mean", "leave-one-out", "opo", "none"]


def group_advantages(
    rewards: Sequence[float],
    normalise: bool = True,
    baseline: Baseline = "group-mean",
    lengths: Sequence[int] | None = None,
) -> list[float]:
    """Advantages [G] of the rewards [G] of one group: A_i = r_i - b_i.

    `group-mean`: b = mean(r) (GRPO: DeepSeekMath, arXiv 2402.03300, section 4.1.2). `leave-one-out`: b_i = the mean of
    the others, so A_i = G / (G - 1) (r_i - mean(r)) (RLOO, arXiv 2402.14740). `opo`: b = sum L_j r_j / sum L_j, with
    the `lengths` [G] in response tokens (arXiv 2505.23585). `none`: b = 0, A_i = r_i.
    Divided by (std(r) + EPSILON) where `normalise`; std is the sample standard deviation (divisor G - 1), as in TRL
    and verl. Raises InvariantError for an empty group, a reward that is not finite, or `opo` without lengths.
    """
    if not rewards:
        raise InvariantError("a group without rewards has no advantage")
    for reward in rewards:
        if not math.isfinite(reward):
            raise InvariantError(f"reward {reward} is not finite; an advantage cannot be made of it")
    if baseline == "none":
        return list(map(float, rewards))
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    if baseline == "opo":
        if lengths is None or len(lengths) != len(rewards) or min(lengths) < 1:
            raise InvariantError(
                f"{len(rewards)} rewards with lengths {lengths}: OPO weighs rewards by response length"
            )
        weighted = math.fsum(length * reward for length, reward in zip(lengths, rewards, strict=True)) / sum(lengths)
        return [reward - weighted for reward in rewards]
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if baseline == "leave-one-out":
        centred = [c * len(rewards) / (len(rewards) - 1) for c in centred]
    if not normalise:
        return centred
    deviation = math.sqrt(math.fsum(c * c for c in centred) / (len(rewards) - 1))
    return [c / (deviation + EPSILON) for c in centred]
