"""Profit gain (Delta) and price index between Nash and cartel, and the Delta of policies that have learnt nothing.

Delta = (profit - Nash profit) / (cartel profit - Nash profit): 0 at static competition, 1 at the joint optimum. On the
usual action boxes play without any learning scores .5 to .7, so `null_gains` belongs beside every Delta. Knows no
time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from offbeat.eventtime.streams import stream_seed
from offbeat.market.demand import Array
from offbeat.market.equilibrium import Benchmark
from offbeat.market.responses import best_response

GRID = 600
DRAWS = 200_000


def profit_gain(benchmark: Benchmark, profits: Array) -> Array:
    """Aggregate Delta of mean profit flows `profits` (n, ...): sums over firms; (...). NaN where cartel and Nash earn
    the same.
    """
    nash, cartel = benchmark.nash.profits.sum(), benchmark.cartel.profits.sum()
    return _ratio(profits.sum(axis=0) - nash, cartel - nash)


def firm_gains(benchmark: Benchmark, profits: Array) -> Array:
    """Delta of each firm (n, ...); NaN for a firm whom the joint optimum does not benefit (costs or qualities
    differ).
    """
    nash, cartel = benchmark.nash.profits, benchmark.cartel.profits
    shape = (-1, *([1] * (profits.ndim - 1)))
    room = np.where(cartel > nash, cartel - nash, np.nan)
    return np.asarray((profits - nash.reshape(shape)) / room.reshape(shape))


def price_index(benchmark: Benchmark, prices: Array) -> Array:
    """(mean price - mean Nash price) / (mean cartel price - mean Nash price) of `prices` (n, ...); (...)."""
    nash, cartel = benchmark.nash.prices.mean(), benchmark.cartel.prices.mean()
    return _ratio(prices.mean(axis=0) - nash, cartel - nash)


def _ratio(above: Array, room: float) -> Array:
    return np.asarray(above / room if room > 0 else np.full_like(above, np.nan))


@dataclass(frozen=True)
class NullGains:
    """Aggregate Delta of play that has learnt nothing, in one action box.

    midpoint: all firms at the middle of the box, what an untrained squashed actor does; random: uniform and
    independent; lowest, highest: all firms at an end; nash: 0 by definition if the box holds the Nash prices; myopic:
    repeated best response.
    """

    midpoint: float
    random: float
    lowest: float
    highest: float
    nash: float
    myopic: float

    def as_dict(self) -> dict[str, float]:
        """By name."""
        return asdict(self)


def null_gains(benchmark: Benchmark, box: tuple[float, float]) -> NullGains:
    """Null values of the aggregate Delta in `box`. Two firms: midpoint rule on a grid of 600 x 600; more: 200,000
    fixed draws.
    """
    industry = benchmark.industry
    low, high = box
    n = industry.firms

    def gain_at(prices: Array) -> float:
        return float(profit_gain(benchmark, industry.flow(np.asarray(prices, dtype=np.float64)[:, None]))[0])

    if n == 2:
        line = low + (high - low) * (np.arange(GRID) + 0.5) / GRID
        drawn = np.stack([np.repeat(line, GRID), np.tile(line, GRID)])
    else:
        drawn = np.random.default_rng(stream_seed(0, "null", n)).uniform(low, high, (n, DRAWS))
    reply = np.full((n, 1), 0.5 * (low + high))
    for _ in range(200):
        before = reply.copy()
        for firm in range(n):
            reply[firm] = best_response(industry, firm, reply, box)
        if np.abs(reply - before).max() < 1e-7 * (high - low):
            break
    return NullGains(
        midpoint=gain_at(np.full(n, 0.5 * (low + high))),
        random=float(profit_gain(benchmark, industry.flow(drawn)).mean()),
        lowest=gain_at(np.full(n, low)),
        highest=gain_at(np.full(n, high)),
        nash=gain_at(np.clip(benchmark.nash.prices, low, high)),
        myopic=gain_at(reply[:, 0]),
    )
