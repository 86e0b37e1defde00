"""The laws of staleness and learning rate (arXiv 2607.01083) as formulas, one function each.

Symbols as in docs/stability.md: S staleness, eta learning rate, T steps, G_upd the norm of an update at rate 1 (so an
update moves the parameters by eta G_upd), R_batch and R_crit distances in parameter space. S and T are both counted in
publishes. *Two-constraint invariant*: a limit is the smaller of the staleness limit, which falls as 1 / S, and the
horizon limit, which does not depend on S. Knows no run and estimates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Binding = Literal["staleness", "horizon"]


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest stable learning rate, and which of its two sides is the smaller."""

    staleness_limit: float
    horizon_limit: float

    @property
    def eta_max(self) -> float:
        return min(self.staleness_limit, self.horizon_limit)

    @property
    def binding(self) -> Binding:
        return "staleness" if self.staleness_limit < self.horizon_limit else "horizon"


def bias_bound(l_beh: float, g_upd: float, staleness: float, eta: float) -> float:
    """||H(theta_t, phi_t) - H(theta_t, theta_t)|| <= L_beh G_upd S eta: the surrogate gradient's bias from data that
    is S publishes old, L_beh being how fast the gradient map changes with the behaviour policy (a norm per distance).
    """
    return l_beh * g_upd * staleness * eta


def staleness_limit(r_batch: float, g_upd: float, staleness: float) -> float:
    """eta at which data that is S publishes old lies R_batch away: R_batch / (S G_upd). Infinite at S = 0."""
    return math.inf if staleness == 0 else r_batch / (staleness * g_upd)


def horizon_limit(r_crit: float, g_upd: float, reach: float) -> float:
    """eta at which a run has drifted R_crit: R_crit / (reach(T) G_upd). The published, ballistic law has
    reach(T) = T.
    """
    return r_crit / (reach * g_upd)


def two_constraints(r_batch: float, r_crit: float, g_upd: float, staleness: float, reach: float) -> Limit:
    """eta << min(R_batch / (S G_upd), R_crit / (T G_upd)), with T replaced by `reach` (see `Reach`)."""
    return Limit(staleness_limit(r_batch, g_upd, staleness), horizon_limit(r_crit, g_upd, reach))


def collapse_steps(r_crit: float, g_upd: float, eta: float) -> float:
    """T_c = R_crit / (eta G_upd): ballistic drift collapses after a number of steps that does not depend on S."""
    return r_crit / (eta * g_upd)


@dataclass(frozen=True, slots=True)
class Reach:
    """How far T updates lead, in lengths of one update: reach(T) = scale T^exponent.

    exponent 1 and scale 1 are a straight line (ballistic, the worst case), exponent 1/2 a random walk (diffusive).
    """

    scale: float = 1.0
    exponent: float = 1.0

    def __call__(self, steps: float) -> float:
        return self.scale * math.pow(steps, self.exponent)


def correlated_reach(steps: int, correlations: Sequence[float]) -> float:
    """sqrt(T + 2 sum_k (T - k) rho_k): root-mean-square distance, in update lengths, of T updates of equal length
    whose cosine at lag k is `correlations[k - 1]`, and 0 beyond them.

    Exact for stationary updates. All rho = 1 gives T, all rho = 0 gives sqrt(T).
    """
    total = float(steps)
    for lag, correlation in enumerate(correlations, start=1):
        total += 2.0 * max(0, steps - lag) * correlation
    return math.sqrt(max(0.0, total))
