"""DAPO's clip-higher: more room above 1 than below, so that unlikely tokens of good responses may grow."""

from __future__ import annotations

from typing import ClassVar, Literal

from offbeat.objectives.clips import BehaviourClip
from offbeat.objectives.objective import Ratio


class Dapo(BehaviourClip):
    """r = target / behaviour; GRPO's formula with clip_high above clip_low, summed over tokens."""

    name: Literal["dapo"] = "dapo"
    clip_high: Ratio = 0.28

    TITLE: ClassVar = "DAPO clip-higher"
    FORMULA: ClassVar = "as GRPO with ε_low = 0.2, ε_high = 0.28"
    SOURCE: ClassVar = "2503.14476"
    READING: ClassVar = "the objective only: no dynamic sampling, no overlong reward shaping"
