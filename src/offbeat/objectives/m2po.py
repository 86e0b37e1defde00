"""M2PO: no clip, but the tokens with the largest squared log-ratio are masked until the second moment is small."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from offbeat.objectives.objective import Bounds, Objective, Ratio, Terms, Tokens

if TYPE_CHECKING:
    from torch import Tensor


class M2po(Objective):
    """1[kept] r A, r = target / behaviour; kept are the tokens of the mini-batch with the smallest (log r)^2.

    As many as keep the mean of (log r)^2 over them at most `threshold`. `tokens` = "harmful": only tokens that the
    ratio already moved the way their advantage wants (A > 0, r > 1 or A < 0, r < 1) count and may be masked.
    """

    name: Literal["m2po"] = "m2po"
    threshold: Ratio = 0.04
    tokens: Literal["all", "harmful"] = "all"

    SURVEYS: ClassVar[bool] = True
    TITLE: ClassVar = "M2PO"
    FORMULA: ClassVar = "1[kept] r A, r = target / behaviour; kept: smallest (log r)² with mean ≤ τ over the mini-batch"
    SOURCE: ClassVar = "2510.01161"
    READING: ClassVar = (
        "masks over all tokens, as AReaL does; `tokens = harmful` counts as the authors' code does (it then turns"
        " the mask into clip bounds, we do not). Masked tokens still count in the divisor; tied tokens go together"
    )

    def survey(self, tokens: Tokens) -> Bounds:
        """(the least (log r)^2 that is masked,); infinity where nothing is."""
        log_ratio = tokens.target_to_behaviour()
        squares = log_ratio[self._counted(log_ratio, tokens)].double().square().sort().values
        within = squares.cumsum(0) <= self.threshold * squares.new_ones(len(squares)).cumsum(0)
        kept = int(within.sum())  # running means of a sorted list never fall
        return (float(squares[kept]) if kept < len(squares) else math.inf,)

    def terms(self, tokens: Tokens, bounds: Bounds = ()) -> Terms:
        log_ratio = tokens.target_to_behaviour()
        detached = log_ratio.detach()
        masked = self._counted(detached, tokens) & ~(detached.double().square() < bounds[0])
        kept = log_ratio.masked_fill(masked, 0.0).exp() * tokens.advantages
        return Terms(kept.masked_fill(masked, 0.0), masked & (tokens.advantages != 0))

    def _counted(self, log_ratio: Tensor, tokens: Tokens) -> Tensor:
        if self.tokens == "all":
            return tokens.mask
        return tokens.mask & (log_ratio * tokens.advantages > 0)
