"""GRPO with the behaviour policy explicit: PPO's clip on the ratio of target to behaviour. The default."""

from __future__ import annotations

from typing import ClassVar, Literal

from offbeat.objectives.clips import BehaviourClip


class Grpo(BehaviourClip):
    """r = target / behaviour; min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), without a KL to a reference."""

    name: Literal["grpo"] = "grpo"

    TITLE: ClassVar = "GRPO"
    FORMULA: ClassVar = "min(r A, clip(r, 1 − ε_low, 1 + ε_high) A), r = target / behaviour"
    SOURCE: ClassVar = "2402.03300 eq. 3"
    READING: ClassVar = "no KL to a reference; mean over tokens as in DAPO (`learner.aggregation = sequence` is eq. 3)"
