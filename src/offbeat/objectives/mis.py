"""Masked importance sampling: a weight outside its window is not truncated but leaves its tokens out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from offbeat.objectives.clips import ProximalClip
from offbeat.objectives.objective import Ratio, Tokens
from offbeat.objectives.window import check_window, masked_weight

if TYPE_CHECKING:
    from torch import Tensor


class Mis(ProximalClip):
    """rho 1[lowest <= rho <= highest] times PPO's term in u = target / proximal; rho of a trajectory or a token."""

    name: Literal["mis"] = "mis"
    level: Literal["sequence", "token"] = "sequence"
    lowest: Annotated[float, Field(ge=0)] = 0.5
    highest: Ratio = 2.0

    TITLE: ClassVar = "MIS"
    FORMULA: ClassVar = "sg(ρ 1[C_low ≤ ρ ≤ C_high]) min(u A, clip(u) A), ρ = Π proximal / behaviour (or of one token)"
    SOURCE: ClassVar = "richardli.xyz/rl-collapse; verl docs/algo/rollout_corr_math.md section 3.4"
    READING: ClassVar = "the weight stays where it is not masked; masked tokens still count in the divisor"

    @model_validator(mode="after")
    def _window(self) -> Mis:
        check_window("mis", self.lowest, self.highest)
        return self

    def log_weight(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        log_ratio = tokens.proximal_to_behaviour()
        if self.level == "sequence":
            log_ratio = log_ratio.sum(dim=1, keepdim=True)
        return masked_weight(log_ratio, self.lowest, self.highest)
