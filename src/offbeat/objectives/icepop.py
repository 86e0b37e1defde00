"""IcePop: masked importance sampling by the token, with a two-sided window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from offbeat.objectives.clips import ProximalClip
from offbeat.objectives.objective import Ratio, Tokens
from offbeat.objectives.window import check_window, masked_weight

if TYPE_CHECKING:
    from torch import Tensor


class IcePop(ProximalClip):
    """1[lowest <= rho <= highest] rho times PPO's term in u = target / proximal; rho = proximal / behaviour."""

    name: Literal["icepop"] = "icepop"
    lowest: Annotated[float, Field(ge=0)] = 0.5
    highest: Ratio = 5.0

    TITLE: ClassVar = "IcePop"
    FORMULA: ClassVar = "sg(ρ 1[0.5 ≤ ρ ≤ 5]) min(u A, clip(u) A), ρ = proximal / behaviour of a token"
    SOURCE: ClassVar = "2510.18855 (Ring-1T), NeMo RL ProRLv2 guide"
    READING: ClassVar = "written for train engine / rollout engine of one version; here ρ also holds the staleness"

    @model_validator(mode="after")
    def _window(self) -> IcePop:
        check_window("icepop", self.lowest, self.highest)
        return self

    def log_weight(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        return masked_weight(tokens.proximal_to_behaviour(), self.lowest, self.highest)
