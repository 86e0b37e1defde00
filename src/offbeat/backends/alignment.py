"""Gradient alignment control as the settings want it, for a learner that knows it only by what it does.

Knows the leaf `align` and the settings, not the learner.
"""

from __future__ import annotations

import torch

from offbeat.align import GAC, lags_up_to
from offbeat.settings import Settings


def attach_alignment(optimizer: torch.optim.Optimizer, settings: Settings) -> GAC:
    """Attach what `learner.align` describes. The learner clips by itself, the random direction has the run's seed."""
    chosen = settings.learner.align
    lags = lags_up_to(chosen.lag_span) if chosen.lag_span else ()
    return GAC(optimizer, **chosen.model_dump(exclude={"lag_span"}), lags=lags, seed=settings.run.seed)
