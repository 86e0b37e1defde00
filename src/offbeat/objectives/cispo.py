"""CISPO: the ratio is a clipped weight without gradient, so that no token is dropped."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from offbeat.objectives.objective import Bounds, Objective, Ratio, Terms, Tokens


class Cispo(Objective):
    """r = target / behaviour; sg(clip(r, 1 - clip_low, 1 + clip_high)) A log target. clip_low = 1: no lower bound."""

    name: Literal["cispo"] = "cispo"
    clip_low: Annotated[float, Field(gt=0, le=1)] = 1.0
    clip_high: Ratio = 0.28

    TITLE: ClassVar = "CISPO"
    FORMULA: ClassVar = "sg(clip(r, 1 − ε_low, 1 + ε_high)) A log target, r = target / behaviour"
    SOURCE: ClassVar = "2506.13585 eq. 4, 5"
    READING: ClassVar = "the paper bounds r above only and prints no ε_high; 0.28 is ours (DAPO's)"

    @property
    def ratio_bounds(self) -> tuple[float, float] | None:
        return 1.0 - self.clip_low, 1.0 + self.clip_high

    def terms(self, tokens: Tokens, bounds: Bounds = ()) -> Terms:
        low, high = 1.0 - self.clip_low, 1.0 + self.clip_high
        ratio = tokens.target_to_behaviour().detach().exp()
        logprobs = tokens.target_logprobs.masked_fill(~tokens.mask, 0.0)
        clipped = ((ratio < low) | (ratio > high)) & (tokens.advantages != 0)
        return Terms(ratio.clamp(low, high) * tokens.advantages * logprobs, clipped)
