"""Decoupled PPO: the clip keeps near the proximal policy, a weight corrects for who sampled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from offbeat.objectives.clips import ProximalClip
from offbeat.objectives.objective import Tokens

if TYPE_CHECKING:
    from torch import Tensor


class DecoupledPpo(ProximalClip):
    """w min(u A, clip(u, 1 - clip_low, 1 + clip_high) A), w = proximal / behaviour, u = target / proximal.

    A token whose w is above `cap` is left out (`mask`) or has w = cap (`clamp`).
    """

    name: Literal["decoupled-ppo"] = "decoupled-ppo"
    cap: Annotated[float, Field(ge=1)] = 5.0
    over_cap: Literal["mask", "clamp"] = "mask"

    TITLE: ClassVar = "Decoupled PPO"
    FORMULA: ClassVar = "w min(u A, clip(u, 1 − ε_low, 1 + ε_high) A), w = proximal / behaviour, u = target / proximal"
    SOURCE: ClassVar = "2110.00641, 2505.24298"
    READING: ClassVar = "w as in AReaL's code: a token with w above `cap` is masked (`over_cap = clamp`: w = cap)"

    def log_weight(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        log_weight, top = tokens.proximal_to_behaviour(), math.log(self.cap)
        over = log_weight > top
        if self.over_cap == "mask":
            return log_weight.masked_fill(over, -math.inf), over
        return log_weight.clamp(max=top), over
