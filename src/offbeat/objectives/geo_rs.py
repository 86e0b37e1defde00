"""Geometric rejection sampling: trajectories whose mean log-ratio is too far from 0 are left out whole."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from offbeat.objectives.clips import ProximalClip
from offbeat.objectives.objective import Ratio, Tokens
from offbeat.objectives.window import check_window, outside_window

if TYPE_CHECKING:
    from torch import Tensor


class GeoRs(ProximalClip):
    """1[lowest <= geometric mean of proximal / behaviour <= highest] times PPO's term in u = target / proximal."""

    name: Literal["geo-rs"] = "geo-rs"
    lowest: Annotated[float, Field(ge=0)] = 0.95
    highest: Ratio = 1.05

    TITLE: ClassVar = "Geo-RS"
    FORMULA: ClassVar = "1[C_low ≤ (Π proximal / behaviour)^(1/L) ≤ C_high] min(u A, clip(u) A)"
    SOURCE: ClassVar = "verl docs/algo/rollout_corr_math.md section 3.3.3; richardli.xyz/rl-collapse"
    READING: ClassVar = "verl's window (1.0001 to 1.001) is for two engines of one version; 5 % is ours, for stale data"

    @model_validator(mode="after")
    def _window(self) -> GeoRs:
        check_window("geo-rs", self.lowest, self.highest)
        return self

    def log_weight(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        mean = tokens.sequence_mean(tokens.proximal_to_behaviour())
        outside = outside_window(mean, self.lowest, self.highest)
        return mean.new_zeros(mean.shape).masked_fill(outside, -math.inf), outside
