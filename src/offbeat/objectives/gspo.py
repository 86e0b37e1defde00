"""GSPO: one ratio a trajectory, the geometric mean of its tokens', clipped as a whole."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from offbeat.objectives.objective import Aggregation, Bounds, Objective, Ratio, Terms, Tokens


class Gspo(Objective):
    """s = (target(y) / behaviour(y))^(1/L); min(s A, clip(s, 1 - clip_low, 1 + clip_high) A), token by token.

    The token form s_t = sg(s) target / sg(target) has the value and, averaged over a trajectory, the gradient of s.
    """

    name: Literal["gspo"] = "gspo"
    clip_low: Annotated[float, Field(gt=0, le=1)] = 3e-4
    clip_high: Ratio = 4e-4

    AGGREGATION: ClassVar[Aggregation] = "sequence"
    TITLE: ClassVar = "GSPO"
    FORMULA: ClassVar = "min(s A, clip(s, 1 − ε_low, 1 + ε_high) A), s = (target(y) / behaviour(y))^(1/L)"
    SOURCE: ClassVar = "2507.18071"
    READING: ClassVar = "the token form, which gives the same gradient for one advantage a trajectory"

    def terms(self, tokens: Tokens, bounds: Bounds = ()) -> Terms:
        low, high, advantages = 1.0 - self.clip_low, 1.0 + self.clip_high, tokens.advantages
        log_ratio = tokens.target_to_behaviour()
        geometric = tokens.sequence_mean(log_ratio.detach())
        ratio = (geometric + log_ratio - log_ratio.detach()).exp()
        surrogate = (ratio * advantages).minimum(ratio.clamp(low, high) * advantages)
        value = geometric.exp()
        clipped = ((advantages > 0) & (value > high)) | ((advantages < 0) & (value < low))
        return Terms(surrogate, clipped.expand_as(surrogate))
