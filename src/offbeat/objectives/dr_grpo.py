"""Dr. GRPO: GRPO without its two biases, the division by a trajectory's length and by the group's deviation."""

from __future__ import annotations

from typing import ClassVar, Literal

from offbeat.objectives.clips import BehaviourClip
from offbeat.objectives.objective import Aggregation


class DrGrpo(BehaviourClip):
    """The clipped ratio of GRPO; what is special is the advantage (not normalised) and the constant divisor."""

    name: Literal["dr-grpo"] = "dr-grpo"

    AGGREGATION: ClassVar[Aggregation] = "constant"
    NORMALISES: ClassVar[bool] = False
    FIXED: ClassVar[bool] = True
    TITLE: ClassVar = "Dr. GRPO"
    FORMULA: ClassVar = "as GRPO, with A = R − mean(R); divided by trajectories × longest response"
    SOURCE: ClassVar = "2503.20783"
    READING: ClassVar = "the constant is `rollout.max_new_tokens`, as in the authors' code (their generation budget)"
