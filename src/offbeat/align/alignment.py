"""What a step was found to be: the record that control returns. Knows no tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from offbeat.align.rule import Regime


@dataclass(frozen=True, slots=True)
class Alignment:
    """What one optimizer step was found to be and what was done to it. None is not a number: nothing valid to compare.

    `cosine` of the gradient with the reference, `controlled` of the controlled gradient with it, `update` of the change
    of the parameters with the change before, `lags` of the gradient with the raw gradients so many steps before.
    `norm` of the gradient before control; `kept` is the share of it that control left, 0 where the step was skipped.
    `skips` in a row, this step included.
    """

    step: int
    regime: Regime
    cosine: float | None = None
    controlled: float | None = None
    update: float | None = None
    gain: float = 1.0
    norm: float = 0.0
    kept: float = 1.0
    skips: int = 0
    lags: Mapping[int, float | None] = field(default_factory=dict)

    def metrics(self, prefix: str = "align/") -> dict[str, float]:
        """For a logger: what is valid, and the regimes as 0 or 1."""
        numbers = {"cosine": self.cosine, "controlled": self.controlled, "update": self.update, "kept": self.kept}
        numbers |= {f"lag_{lag}": cosine for lag, cosine in self.lags.items()}
        regimes = {name: float(self.regime == name) for name in ("invalid", "projected", "skipped", "released")}
        return {prefix + key: value for key, value in (numbers | regimes).items() if value is not None}
