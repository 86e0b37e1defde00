"""TOPR: what was good is imitated as it is, what was bad counts less the less likely it has become."""

from __future__ import annotations

from typing import ClassVar, Literal

from offbeat.objectives.objective import Bounds, Objective, Terms, Tokens


class Topr(Objective):
    """w A log target, w = 1 where A >= 0, else sg(clip(target(y) / behaviour(y), 0, 1)), of the whole trajectory."""

    name: Literal["topr"] = "topr"

    TITLE: ClassVar = "TOPR"
    FORMULA: ClassVar = "w A log target; w = 1 for A ≥ 0, sg(clip(target(y) / behaviour(y), 0, 1)) for A < 0"
    SOURCE: ClassVar = "2503.14286"
    READING: ClassVar = "the paper's reward R is our advantage, so the baseline decides what counts as negative"

    def terms(self, tokens: Tokens, bounds: Bounds = ()) -> Terms:
        log_ratio = tokens.target_to_behaviour().detach().sum(dim=1, keepdim=True)
        negative = tokens.advantages < 0
        weight = log_ratio.clamp(max=0.0).exp().where(negative, log_ratio.new_ones(()))
        logprobs = tokens.target_logprobs.masked_fill(~tokens.mask, 0.0)
        return Terms(weight * tokens.advantages * logprobs, (negative & (log_ratio > 0)).expand_as(tokens.mask))
