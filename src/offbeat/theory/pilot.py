"""R_batch, G_upd, R_crit and the drift law from the steps of one short run, each with its interval.

What is published says what these are for, not how they are computed; these definitions are ours (docs/stability.md):

- G_upd: the median over steps of ||theta_{t+1} - theta_t|| / eta_t;
- R_batch: the distance ||theta_t - phi_t|| at which the mismatch of behaviour and target reaches `level`, mismatch
  taken as proportional to distance (its proportion is fitted). For a clipped objective the mismatch is the
  root-mean-square log ratio sqrt(2 KL) and the level a multiple of the logarithm of its upper bound (`edge_level`);
- drift law: ||theta_t - theta_0|| = eta G_upd scale t^exponent, fitted;
- R_crit: the drift at which the run collapsed. A run that did not collapse only bounds it from below: it is *unseen*.

Invariant: numbers from the steps alone. Knows no log, no weights and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from offbeat.eventtime.streams import stream_seed
from offbeat.theory.collapse import collapse
from offbeat.theory.fits import RESAMPLES, Interval, blocks, bootstrap, median, power_law, proportion
from offbeat.theory.laws import Reach

BLOCK = 8
"""Steps resampled together: those of one run depend on each other over about an optimizer's memory."""
FEWEST_STEPS = 2 * BLOCK
EDGE = 2.8
"""Measured: the middle (geometric) of the rates at which half of sync's gain and all of it was gone, over the rate at
which a typical token meets the bound. From `offbeat study two-constraint`, seeds 0 to 4, 150 updates, S = 8 alone."""
USUAL_BOUND = 1.2


@dataclass(frozen=True, slots=True)
class PilotStep:
    """One publish: learning rate, norm of the update, distance from the behaviour policy of its batch and mismatch
    with it (None where not known), distance from the start (None where not known), and what collapse is judged by.
    """

    eta: float
    update_norm: float
    lag_distance: float | None
    mismatch: float | None
    drift: float | None
    reward: float


@dataclass(frozen=True, slots=True)
class Estimates:
    """What one pilot says. `r_crit` is a lower bound where not `r_crit_seen`; its interval then has no upper end.

    `eta` is the pilot's own learning rate (the largest of its steps), `steps` their number.
    """

    r_batch: float
    r_batch_interval: Interval
    g_upd: float
    g_upd_interval: Interval
    r_crit: float
    r_crit_interval: Interval
    r_crit_seen: bool
    reach: Reach
    eta: float
    steps: int


def estimate(steps: Sequence[PilotStep], level: float, seed: int = 0, resamples: int = RESAMPLES) -> Estimates:
    """All estimates. Raises ValueError, saying what is missing, where the steps cannot give one of them."""
    if len(steps) < FEWEST_STEPS:
        raise ValueError(f"{len(steps)} steps; at least {FEWEST_STEPS} are needed")
    units = blocks(steps, BLOCK)

    def interval(name: str, value: float, statistic: object) -> Interval:
        assert callable(statistic)
        drawn = bootstrap(
            units, lambda sample: statistic([s for unit in sample for s in unit]), stream_seed(seed, name), resamples
        )
        return Interval(min(drawn.low, value), max(drawn.high, value))

    g_upd, r_batch = update_gain(steps), batch_radius(steps, level)
    eta = max(step.eta for step in steps)
    r_crit, bounds, seen = critical_drift(steps)
    return Estimates(
        r_batch=r_batch,
        r_batch_interval=interval("r_batch", r_batch, lambda sample: batch_radius(sample, level)),
        g_upd=g_upd,
        g_upd_interval=interval("g_upd", g_upd, update_gain),
        r_crit=r_crit,
        r_crit_interval=bounds,
        r_crit_seen=seen,
        reach=drift_law(steps, eta * g_upd),
        eta=eta,
        steps=len(steps),
    )


def mismatch_level(ratio_bounds: tuple[float, float] | None) -> float:
    """The mismatch at which a typical token meets the upper bound of an objective on target / behaviour: its logarithm.
    PPO's usual 1.2 where the objective has no bound, or one that is no bound (infinite, or 1).
    """
    high = ratio_bounds[1] if ratio_bounds is not None else math.inf
    return math.log(high) if 1.0 < high < math.inf else math.log(USUAL_BOUND)


def edge_level(ratio_bounds: tuple[float, float] | None) -> float:
    """The mismatch at which stale data stops being usable: EDGE times `mismatch_level`."""
    return EDGE * mismatch_level(ratio_bounds)


def update_gain(steps: Sequence[PilotStep]) -> float:
    """G_upd: the median norm of an update at learning rate 1."""
    return median([step.update_norm / step.eta for step in steps if step.eta > 0])


def batch_radius(steps: Sequence[PilotStep], level: float) -> float:
    """R_batch: `level` over the mismatch that one unit of distance from the behaviour policy makes."""
    pairs = [(s.lag_distance, s.mismatch) for s in steps if s.lag_distance and s.mismatch]
    if not pairs:
        raise ValueError("no step was trained on data of an earlier version; its run needs a staleness of 1 or more")
    return level / proportion([d for d, _ in pairs], [m for _, m in pairs])


def drift_law(steps: Sequence[PilotStep], length: float) -> Reach:
    """The fitted reach in updates of `length` each: of exponent at most 1, and never farther than a straight line.

    Time is counted in path: an update of half the length is half a step. Where the drift is not known, the straight
    line, which is the worst there can be.
    """
    path, points = 0.0, []
    for step in steps:
        path += step.update_norm
        if step.drift and path > 0:
            points.append((path / length, step.drift / length))
    points = [point for point in points if point[0] >= 1.0]
    if len(points) < FEWEST_STEPS // 2:
        return Reach()
    fitted = power_law([t for t, _ in points], [r for _, r in points])
    exponent = max(0.0, min(1.0, fitted.slope))
    last, reached = points[-1]
    return Reach(scale=min(reached / last**exponent, last ** (1.0 - exponent)), exponent=exponent)


def critical_drift(steps: Sequence[PilotStep]) -> tuple[float, Interval, bool]:
    """R_crit, its interval, and whether the run reached it. The interval of a collapse is the drift over the window
    in which it was noticed; without one it begins where the run got to. Where drifts are not known, path stands for
    them: a bound of the same kind."""
    drifts, path = [], 0.0
    for step in steps:
        path += step.update_norm
        drifts.append(path if step.drift is None else step.drift)
    at = collapse([step.reward for step in steps]).step
    if at is None:
        return max(drifts), Interval(max(drifts), math.inf), False
    around = drifts[max(0, at - 10) : at + 1]
    return drifts[at], Interval(min(around), max(around)), True
