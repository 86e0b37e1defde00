"""The learner's side of gradient alignment control: what it asks of it, and what its step report says about it.

The control itself is no concern of this room: whoever composes the learner attaches it to the optimizer
(`offbeat.align` in a run). Knows no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from offbeat.errors import InvariantError
from offbeat.records import StepAlignment
from offbeat.settings import Settings


class Found(Protocol):
    """What one update was found to be and what was done to it; None is not a number."""

    @property
    def regime(self) -> str: ...
    @property
    def cosine(self) -> float | None: ...
    @property
    def controlled(self) -> float | None: ...
    @property
    def update(self) -> float | None: ...
    @property
    def kept(self) -> float: ...
    @property
    def lags(self) -> Mapping[int, float | None]: ...


class Control(Protocol):
    """Attached to an optimizer: controls the gradients in its step, or before, when told to. Its state is part of the
    optimizer's state dict."""

    @property
    def last(self) -> Found | None: ...

    def control(self) -> Found:
        """Measure and control the gradients now and not at the step, which follows."""

    def missed(self) -> None:
        """An update is left out before the optimizer is asked."""

    def strengthen(self, strength: float) -> None:
        """From now on project so strongly: 0 not at all, 1 down to what the settings say."""


Attach = Callable[[torch.optim.Optimizer, Settings], Control]


def attached(attach: Attach | None, optimizer: torch.optim.Optimizer, settings: Settings) -> Control | None:
    """The control that the settings ask for; None where they ask for none. Raises InvariantError where nobody can give
    it."""
    if not settings.learner.controls_alignment:
        return None
    if attach is None:
        raise InvariantError("learner.align or learner.autopilot is on, but the learner was given nothing to attach")
    return attach(optimizer, settings)


def step_alignment(updates: Sequence[Found]) -> StepAlignment | None:
    """What the report says about an iteration's updates; None where control is off."""
    if not updates:
        return None
    regimes = [found.regime for found in updates]
    lags = {lag: _mean([found.lags.get(lag) for found in updates]) for found in updates for lag in found.lags}
    return StepAlignment(
        cosine=_mean([found.cosine for found in updates]),
        controlled=_mean([found.controlled for found in updates]),
        update=_mean([found.update for found in updates]),
        kept=sum(found.kept for found in updates) / len(updates),
        invalid=regimes.count("invalid"),
        projected=regimes.count("projected"),
        skipped=regimes.count("skipped"),
        released=regimes.count("released"),
        lags={lag: cosine for lag, cosine in lags.items() if cosine is not None},
    )


def _mean(cosines: Sequence[float | None]) -> float | None:
    valid = [cosine for cosine in cosines if cosine is not None]
    return sum(valid) / len(valid) if valid else None
