"""One step of an optimizer at an update's own rate, measured. Knows no batch and no loss."""

from __future__ import annotations

import torch

from offbeat.learner.drift import DriftMeter
from offbeat.learner.rates import ess_scale, staleness_scale
from offbeat.learner.tally import Update
from offbeat.settings import LearnerSettings


def take_step(
    optimizer: torch.optim.Optimizer, update: Update, settings: LearnerSettings, meter: DriftMeter | None
) -> None:
    """The optimizer's step at the update's own rate, and how far it went."""
    if settings.ess_reference is not None:
        update.rate_scale *= ess_scale(update.effective_sample_size, settings.ess_reference)
    if settings.staleness_rate == "inverse":
        update.rate_scale *= staleness_scale(update.staleness_mean)
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    if meter is not None:
        meter.mark()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * update.rate_scale
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    taken = rates[0] * update.rate_scale
    moved = meter.since_mark() if meter is not None else 0.0
    if taken > 0 and moved > 0:  # an optimizer may decline to move
        update.g_upd = moved / taken
