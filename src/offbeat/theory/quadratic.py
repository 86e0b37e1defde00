"""The delayed quadratic: gradient descent on 1/2 lambda x^2 with gradients that are s steps old. Its limit is exact.

    x_{t+1} = x_t - eta lambda x_{t-s}   is stable  if and only if   eta lambda < 2 sin(pi / (2 (2 s + 1)))

(Levin and May 1976 for this recursion: its roots leave the unit circle there.) Planner, projection and autopilot are
checked on it before anything else sees them. Invariant: a test bed is a function of its arguments and its seed.
"""

from __future__ import annotations

import math
from collections import deque

from offbeat.eventtime.draws import Draws
from offbeat.theory.refresh import Refresh, lag_at


def exact_limit(lag: int) -> float:
    """The largest stable eta lambda at a fixed lag: 2 sin(pi / (2 (2 s + 1))), about pi / (2 s)."""
    return 2.0 * math.sin(math.pi / (2 * (2 * lag + 1)))


class DelayedQuadratic:
    """Parameters [n] on 1/2 sum lambda_i x_i^2, moved by gradients of where they were `lag` steps ago, plus noise.

    `curvatures` [n] are the lambda; all parameters begin at `start`. The gradient's noise is normal with standard
    deviation `noise` in each coordinate. Whoever steps decides what is done with the gradient.
    """

    def __init__(
        self,
        curvatures: tuple[float, ...],
        staleness: int,
        refresh: Refresh = "fixed-lag",
        noise: float = 0.0,
        start: float = 1.0,
        seed: int = 0,
    ) -> None:
        self._curvatures = curvatures
        self._refresh: Refresh = refresh
        self._noise = noise
        self._draws = Draws(seed)
        self._past: deque[list[float]] = deque(maxlen=staleness + 1)
        self.staleness = staleness
        self.steps = 0
        self.x = [start] * len(curvatures)

    @property
    def loss(self) -> float:
        """1/2 sum lambda x^2 of the current parameters."""
        return 0.5 * math.fsum(c * v * v for c, v in zip(self._curvatures, self.x, strict=True))

    def behaviour(self) -> list[float]:
        """The parameters [n] that the next gradient is computed at."""
        lag = lag_at(self.steps, self.staleness, self._refresh)
        return self.x if lag == 0 else self._past[-lag]

    def gradient(self) -> list[float]:
        """The gradient [n] at `behaviour`, with noise; draws anew at every call."""
        noise = self._noise
        return [
            c * v + (noise * self._draws.normal() if noise else 0.0)
            for c, v in zip(self._curvatures, self.behaviour(), strict=True)
        ]

    def move(self, update: list[float]) -> None:
        """Add `update` [n] to the parameters."""
        self._past.append(list(self.x))
        self.x = [v + u for v, u in zip(self.x, update, strict=True)]
        self.steps += 1

    def set_staleness(self, staleness: int) -> None:
        """From now on gradients are at most so old (what a scheduler's K does to a run)."""
        self.staleness = staleness
        self._past = deque(self._past, maxlen=staleness + 1)
