"""Windows on a ratio, kept in logarithms: a product over a long trajectory overflows long before its logarithm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def check_window(objective: str, lowest: float, highest: float) -> None:
    """Raise ValueError in one line unless the window holds the ratio 1 of an on-policy token."""
    if not lowest <= 1 <= highest:
        raise ValueError(
            f"learner.objective.lowest = {lowest:g} and highest = {highest:g}: {objective} would leave out what is"
            " on policy (ratio 1); let 1 lie between them"
        )


def outside_window(log_ratio: Tensor, lowest: float, highest: float) -> Tensor:
    """Where exp(log_ratio) is not within [lowest, highest]; also where it is not a number."""
    low = math.log(lowest) if lowest > 0 else -math.inf
    return ~((log_ratio >= low) & (log_ratio <= math.log(highest)))


def masked_weight(log_ratio: Tensor, lowest: float, highest: float) -> tuple[Tensor, Tensor]:
    """log of ratio x 1[within the window], -inf outside, and where that is."""
    outside = outside_window(log_ratio, lowest, highest)
    return log_ratio.masked_fill(outside, -math.inf), outside
