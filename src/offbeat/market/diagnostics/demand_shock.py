"""A shock to demand: prices before, during and after it, in calendar time and by the firms' own decisions.

Each market is played twice under one seed, with the shock and without. *Non-recovery* is a price that stays off its
path after demand is back where it was: the policy left its convention and did not find back. It judges no one's word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offbeat.market.clocks import Index
from offbeat.market.course import Course, play
from offbeat.market.demand import Array
from offbeat.market.equilibrium import Benchmark
from offbeat.market.estimate import Estimate, by_unit, estimate
from offbeat.market.rules import Policy
from offbeat.market.scenario import Scenario
from offbeat.market.shocks import Step

SAMPLES = 121


@dataclass(frozen=True)
class ShockResponse:
    """times (T,) since the shock; prices, base (T,): mean price of all firms with it and without; displaced: largest
    gap |prices - base| of the mean paths; left: gap at the end; recovery: 1 - |gap at the end| / largest
    gap, None where nothing moved; half_life: time from the end of the shock until the mean gap is half of what it was
    then, None if it never is; by_decision (K,): mean gap at the firms' k-th decision after the shock began."""

    shock: Step
    times: Array
    prices: Array
    base: Array
    displaced: float
    left: Estimate
    recovery: float | None
    half_life: float | None
    by_decision: Array


def shock_demand(
    scenario: Scenario,
    benchmark: Benchmark,
    policies: Sequence[Policy],
    shock: Step,
    watched: float,
    markets: int,
    seed: int,
    units: Index | None = None,
) -> ShockResponse:
    """Play `markets` pairs of markets for `watched` units of time after the shock began; `units` as in `force`."""
    horizon = shock.at + watched
    initial = np.clip(benchmark.cartel.prices, *scenario.box)
    hit = play(scenario.open(markets, seed, initial=initial, shocks=shock), policies, horizon)
    base = play(scenario.open(markets, seed, initial=initial), policies, horizon)
    times = np.linspace(0.0, watched, SAMPLES)
    gap = (hit.at(shock.at + times) - base.at(shock.at + times)).mean(axis=1)
    path = gap.mean(axis=1)
    displaced = float(np.abs(path).max())
    moved = displaced > 1e-9
    over = int(np.searchsorted(times, min(shock.lasting, watched)))
    over = min(over, SAMPLES - 1)
    halved = np.flatnonzero(np.abs(path[over:]) <= 0.5 * abs(path[over]))
    return ShockResponse(
        shock=shock,
        times=times,
        prices=hit.at(shock.at + times).mean(axis=(1, 2)),
        base=base.at(shock.at + times).mean(axis=(1, 2)),
        displaced=displaced,
        left=estimate(by_unit(gap[-1], units)),
        recovery=float(1 - abs(path[-1]) / displaced) if moved else None,
        half_life=float(times[over + halved[0]] - times[over]) if moved and len(halved) else None,
        by_decision=_by_decision(hit, base, shock.at),
    )


def _by_decision(hit: Course, base: Course, at: float, most: int = 12) -> Array:
    """Both courses tick alike, so their decisions pair up one by one."""
    total, number = np.zeros(most), np.zeros(most)
    count = np.zeros(hit.prices.shape[1:], dtype=int)
    for decision, posted, unshocked in zip(hit.decisions, hit.posted, base.posted, strict=True):
        rows = np.flatnonzero(decision.now >= at)
        nth = count[decision.firm[rows], decision.market[rows]]
        kept = nth < most
        np.add.at(total, nth[kept], (posted - unshocked)[rows][kept])
        np.add.at(number, nth[kept], 1)
        count[decision.firm[rows], decision.market[rows]] += 1
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)
