"""The bound that makes divergence a matter of fact: what |Q| cannot exceed under a learner's own discounting. Pure
numbers.
"""

from __future__ import annotations

import numpy as np

from offbeat.market.diagnostics.divergence import largest_flow
from offbeat.market.learners.settings import StudySettings


def critic_bound(study: StudySettings, rate: float) -> float | None:
    """What |Q| cannot exceed in a cell, under the learner's own discount convention; None where values have no
    bound.

    Time-aware: largest flow / rho. A fixed discount gamma an event: largest mean profit of an interval / (1 -
    gamma), that is flow / (rate + rho) for exponential waits, flow (1 - e^{-rho / rate}) / rho for equal ones.
    """
    if getattr(study.learner, "average_reward", False):
        return None
    benchmark = study.benchmark()
    flow, rho = largest_flow(benchmark.industry, study.box(benchmark)), study.market.rho
    if study.learner.discount == "time":
        return flow / rho
    rate *= min(study.market.speeds_of(benchmark.industry.firms))  # the slowest firm's intervals pay most
    exponential = study.market.clock in ("poisson", "common-poisson")
    wait = 1 / (rate + rho) if exponential else -np.expm1(-rho / rate) / rho
    return float(flow * wait / (1 - study.learner.gamma))
