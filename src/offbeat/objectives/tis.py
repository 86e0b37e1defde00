"""Truncated importance sampling: PPO on the proximal policy, weighted by a truncated proximal / behaviour."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from offbeat.objectives.clips import ProximalClip
from offbeat.objectives.objective import Ratio, Tokens

if TYPE_CHECKING:
    from torch import Tensor


class Tis(ProximalClip):
    """min(rho, cap) times PPO's term in u = target / proximal; rho = proximal / behaviour of a token or trajectory."""

    name: Literal["tis"] = "tis"
    level: Literal["token", "sequence"] = "token"
    cap: Ratio = 2.0

    TITLE: ClassVar = "TIS"
    FORMULA: ClassVar = "sg(min(ρ, C)) min(u A, clip(u) A), ρ = proximal / behaviour (token) or its product (sequence)"
    SOURCE: ClassVar = "verl docs/algo/rollout_corr_math.md sections 3.2, 3.3"
    READING: ClassVar = "three policies (verl's decoupled mode); weights are not normalised over the batch"

    def log_weight(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        log_weight = tokens.proximal_to_behaviour()
        if self.level == "sequence":
            log_weight = log_weight.sum(dim=1, keepdim=True)
        top = math.log(self.cap)
        return log_weight.clamp(max=top), log_weight > top
