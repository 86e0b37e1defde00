"""When grim trigger sustains the cartel price: the theory's line in the (rate, latency) plane.

A rival with a Poisson clock of rate lambda that sees with latency delta first reacts after delta + Exp(lambda); D is
the expected discount at that instant. Nash reversion sustains the cartel price iff D >= D* = (pi_D - pi_M) / (pi_D -
pi_N). It ignores the deviator's later moves: a one-deviation bound, not an equilibrium of the Poisson game.
"""

from __future__ import annotations

import numpy as np

from offbeat.market.clocks import Numbers
from offbeat.market.demand import Array
from offbeat.market.equilibrium import Benchmark
from offbeat.market.responses import best_response


def reaction_discount(rate: Numbers, latency: Numbers, rho: Numbers, periodic: bool = False) -> Array:
    """D(lambda, delta) = e^{-rho delta} lambda / (lambda + rho); for a periodic clock its worst case e^{-rho (delta +
    1/lambda)}.
    """
    rate, latency, rho = np.asarray(rate), np.asarray(latency), np.asarray(rho)
    if periodic:
        return np.asarray(np.exp(-rho * (latency + 1 / rate)))
    return np.asarray(np.exp(-rho * latency) * rate / (rate + rho))


def critical_discount(benchmark: Benchmark) -> Array:
    """D* of each firm (n,), at its best deviation from the cartel prices; the largest of them binds.

    1 where a firm earns no less from deviating and being punished, at any patience; NaN where nothing is gained by
    deviating.
    """
    industry, cartel, nash = benchmark.industry, benchmark.cartel, benchmark.nash
    low = float(min(industry.cost))
    high = float(max(cartel.prices.max(), nash.prices.max()))
    if low == high:
        return np.full(industry.firms, np.nan)
    critical = np.full(industry.firms, np.nan)
    for firm in range(industry.firms):
        prices = cartel.prices[:, None].copy()
        prices[firm] = best_response(industry, firm, prices, (low, high))
        deviation = float(industry.flow(prices)[firm, 0])
        gained = deviation - float(cartel.profits[firm])
        if gained > 0:
            lost = deviation - float(nash.profits[firm])
            critical[firm] = min(1.0, gained / lost) if lost > 0 else 1.0
    return critical


def longest_latency(rate: Numbers, rho: Numbers, critical: float) -> Array:
    """The latency up to which D >= `critical`: ln(lambda / (lambda + rho) / D*) / rho, 0 where no latency is short
    enough.
    """
    rate, rho = np.asarray(rate), np.asarray(rho)
    return np.asarray(np.maximum(0.0, np.log(rate / (rate + rho) / critical) / rho))
