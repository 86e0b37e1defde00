"""What is read off a learner while it trains: its parameters as one vector, and the cosines of its gradients.

*Watching invariant*: nothing here changes a gradient, a parameter or an optimizer's state. Hooks onto any optimizer;
the gradient is seen as the optimizer gets it first (a norm clip before that does not change a cosine).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def flat(parameters: Sequence[nn.Parameter]) -> Tensor:
    """A copy of all parameters as one vector [P]."""
    with torch.no_grad():
        return torch.cat([parameter.reshape(-1) for parameter in parameters])


def flat_gradient(parameters: Sequence[nn.Parameter]) -> Tensor:
    """A copy of all gradients as one vector [P]; zeros where there is none."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.cat([part.reshape(-1) for part in parts])


def cosine(a: Tensor, b: Tensor) -> float | None:
    """None where either vector is zero or not finite."""
    size = float(a.norm()) * float(b.norm())
    return float(a @ b) / size if size > 0 and math.isfinite(size) else None


class GradientCosines:
    """Cosines of each gradient with those `lags` updates before it; attach before anything changes gradients."""

    def __init__(self, optimizer: torch.optim.Optimizer, lags: Sequence[int] = (1,)) -> None:
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._lags = tuple(lags)
        self._past: deque[Tensor] = deque(maxlen=max(self._lags))
        self._latest: dict[int, float | None] | None = None
        optimizer.register_step_pre_hook(self._see)

    def take(self) -> dict[int, float | None]:
        """Cosines by lag of the step since the last call, None where not valid. A step without a gradient, or one left
        out, has none, and nothing is compared across it."""
        taken, self._latest = self._latest, None
        if taken is None:
            self._past.clear()
        return taken or dict.fromkeys(self._lags)

    def _see(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        gradient = flat_gradient(self._parameters)
        past = self._past
        self._latest = {lag: cosine(gradient, past[-lag]) if lag <= len(past) else None for lag in self._lags}
        past.append(gradient)
