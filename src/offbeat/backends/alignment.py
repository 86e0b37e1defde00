"""Gradient alignment control as the settings want it, for a learner that knows it only by what it does.

Knows the leaf `align` and the settings, not the learner.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from offbeat.align import GAC, lags_up_to
from offbeat.settings import Settings

STILL = 1 - 1e-6
"""A cosine that no two gradients of a run have: where only what is above it is projected, nothing is."""


class RunControl(GAC):
    """The control of a run. Under the autopilot it projects down to a cosine that is told step by step."""

    def __init__(self, optimizer: torch.optim.Optimizer, settings: Settings) -> None:
        """What `learner.align` describes. The learner clips by itself, the random direction has the run's seed."""
        chosen = settings.learner.align
        self._c_low = chosen.c_low
        keys = chosen.model_dump(exclude={"lag_span"})
        if settings.learner.autopilot:
            keys |= {"mode": "cap", "c_low": STILL, "c_high": 1.0}
        lags = lags_up_to(chosen.lag_span) if chosen.lag_span else ()
        super().__init__(optimizer, **keys, lags=lags, seed=settings.run.seed)

    def strengthen(self, strength: float) -> None:
        """Project so strongly from now on: 0 not at all, 1 down to `learner.align.c_low`."""
        self.settings = replace(self.settings, c_low=min(STILL, 1.0 - strength * (1.0 - self._c_low)))


def attach_alignment(optimizer: torch.optim.Optimizer, settings: Settings) -> RunControl:
    """Attach the control that a run's settings ask for."""
    return RunControl(optimizer, settings)
