"""BAPO: clip bounds searched anew for every mini-batch, until positive advantages carry their share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from offbeat.objectives.clips import clipped_surrogate
from offbeat.objectives.objective import Bounds, Objective, Ratio, Terms, Tokens

if TYPE_CHECKING:
    from torch import Tensor


class Bapo(Objective):
    """min(r A, clip(r, low, high) A), r = target / behaviour; (low, high) start at the `_from` values.

    While the positive share P / (P + N) is below `positive_share`, `high` is raised by its step up to `high_to`, after
    that `low` up to `low_to`. P and N are the absolute sums of the clipped terms with A > 0 and A < 0.
    """

    name: Literal["bapo"] = "bapo"
    low_from: Annotated[float, Field(ge=0, lt=1)] = 0.6
    low_to: Annotated[float, Field(ge=0, lt=1)] = 0.9
    low_step: Ratio = 0.02
    high_from: Annotated[float, Field(gt=1)] = 1.2
    high_to: Annotated[float, Field(gt=1)] = 3.0
    high_step: Ratio = 0.05
    positive_share: Annotated[float, Field(ge=0, le=1)] = 0.4

    SURVEYS: ClassVar[bool] = True
    TITLE: ClassVar = "BAPO"
    FORMULA: ClassVar = "min(r A, clip(r, c_low, c_high) A), r = target / behaviour; bounds searched until P/(P+N) ≥ ρ₀"
    SOURCE: ClassVar = "2510.18927"
    READING: ClassVar = (
        "the paper's order (c_high first; the released code the other way round); its quotient over the sum of all"
        " terms is read as the positive share P/(P+N), and its weight μ as the sampling itself"
    )

    @model_validator(mode="after")
    def _ranges(self) -> Bapo:
        for end, first, last in (("low", self.low_from, self.low_to), ("high", self.high_from, self.high_to)):
            if first > last:
                raise ValueError(
                    f"learner.objective.{end}_from = {first:g} is more than {end}_to = {last:g}; lower the one or raise"
                    " the other"
                )
        return self

    def survey(self, tokens: Tokens) -> Bounds:
        """(low, high) of this mini-batch."""
        ratio, advantages = tokens.target_to_behaviour().exp().double(), tokens.advantages.double()
        high_steps = _steps(self.high_from, self.high_to, self.high_step)
        low_steps = _steps(self.low_from, self.low_to, self.low_step)
        tried = [(self.low_from, high) for high in high_steps] + [(low, high_steps[-1]) for low in low_steps[1:]]
        for low, high in tried:
            if _positive_share(ratio, advantages, low, high) >= self.positive_share:
                return low, high
        return tried[-1]

    def terms(self, tokens: Tokens, bounds: Bounds = ()) -> Terms:
        return clipped_surrogate(tokens.target_to_behaviour(), tokens.advantages, bounds[0], bounds[1])


def _steps(first: float, last: float, step: float) -> list[float]:
    """first, first + step, ... and, in the end, last itself."""
    count = int((last - first) / step + 1e-9)
    found = [first + i * step for i in range(count + 1)]
    return found if last - found[-1] < 1e-9 else [*found, last]


def _positive_share(ratio: Tensor, advantages: Tensor, low: float, high: float) -> float:
    """P / (P + N) of the clipped terms; 1 where nothing is negative, also where nothing is positive either."""
    terms = (ratio * advantages).minimum(ratio.clamp(low, high) * advantages)
    positive, negative = float(terms[advantages > 0].sum()), float(-terms[advantages < 0].sum())
    return positive / (positive + negative) if negative > 0 else 1.0
