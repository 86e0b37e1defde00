"""How large a learning rate will survive S and T, from a pilot's estimates: the two-constraint rule with an answer.

*Honest-edge rule*: a horizon that the pilot never reached is a bound, not an edge. Where R_crit is unseen the
staleness limit is the prediction and the interval reaches down to what the pilot has shown to be safe. Only without
any staleness limit (S = 0) is the bound itself the answer. Pure; knows no file and no picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offbeat.theory.fits import Interval
from offbeat.theory.laws import Binding, Limit, two_constraints
from offbeat.theory.pilot import Estimates


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer for one (S, T). `margin` is eta_max over the pilot's own learning rate: above 1 it would survive."""

    staleness: int
    steps: int
    eta_max: float
    interval: Interval
    binding: Binding
    limit: Limit
    margin: float
    estimates: Estimates

    def to_json(self) -> dict[str, Any]:
        """Plain values; null stands for infinity."""
        found = self.estimates
        return {
            "eta_max": self.eta_max,
            "interval": _finite(self.interval),
            "binding": self.binding,
            "margin": self.margin,
            "staleness": self.staleness,
            "steps": self.steps,
            "r_batch": found.r_batch,
            "r_batch_interval": _finite(found.r_batch_interval),
            "r_crit": found.r_crit,
            "r_crit_interval": _finite(found.r_crit_interval),
            "r_crit_seen": found.r_crit_seen,
            "g_upd": found.g_upd,
            "g_upd_interval": _finite(found.g_upd_interval),
            "staleness_limit": _finite([self.limit.staleness_limit])[0],
            "horizon_limit": self.limit.horizon_limit,
            "drift_exponent": found.reach.exponent,
            "drift_scale": found.reach.scale,
            "eta": found.eta,
            "pilot_steps": found.steps,
        }


def plan(found: Estimates, staleness: int, steps: int) -> Plan:
    """The largest stable learning rate for runs of `steps` publishes on data at most `staleness` publishes old."""
    reach = found.reach(steps)
    limit = two_constraints(found.r_batch, found.r_crit, found.g_upd, staleness, reach)
    low = two_constraints(
        found.r_batch_interval.low, found.r_crit_interval.low, found.g_upd_interval.high, staleness, reach
    ).eta_max
    high = two_constraints(
        found.r_batch_interval.high, found.r_crit_interval.high, found.g_upd_interval.low, staleness, reach
    ).eta_max
    bounded_only = not found.r_crit_seen and limit.staleness_limit < math.inf
    eta_max = limit.staleness_limit if bounded_only else limit.eta_max
    binding: Binding = "staleness" if bounded_only else limit.binding
    return Plan(
        staleness, steps, eta_max, Interval(min(low, eta_max), max(high, eta_max)), binding, limit,
        eta_max / found.eta, found,
    )  # fmt: skip


def margins(found: Estimates, stalenesses: Sequence[int], etas: Sequence[float], steps: int) -> list[list[float]]:
    """eta_max(S) / eta for each eta (rows) and S (columns): the map. Above 1 a run is predicted to survive."""
    edges = [plan(found, staleness, steps).eta_max for staleness in stalenesses]
    return [[edge / eta for edge in edges] for eta in etas]


def _finite(values: Sequence[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]
