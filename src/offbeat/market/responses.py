"""Static best responses inside a price box, for any demand model and many markets at once.

A grid with repeated zooming around the best point: exact to the last grid's width where a firm's profit has one peak
between grid points. It takes prices and returns prices; it knows no time.
"""

from __future__ import annotations

import numpy as np

from offbeat.market.demand import Array
from offbeat.market.industry import Industry

POINTS = 41
ROUNDS = 6


def best_response(
    industry: Industry, firm: int, prices: Array, box: tuple[float, float], level: Array | float = 0.0
) -> Array:
    """The price in `box` that earns `firm` most against the others' `prices` (n, K); (K,). Own row is ignored.

    Width of the last grid: (high - low) (2 / 40)^5 / 40, 8e-9 of the box.
    """
    count = prices.shape[1]
    low, high = np.full(count, box[0]), np.full(count, box[1])
    steps = np.linspace(0.0, 1.0, POINTS)[:, None]
    trial = np.repeat(prices[:, None, :], POINTS, axis=1)
    best = low
    for _ in range(ROUNDS):
        grid = low + (high - low) * steps
        trial[firm] = grid
        top = industry.flow(trial, level)[firm].argmax(axis=0)
        columns = np.arange(count)
        best = grid[top, columns]
        low, high = grid[np.maximum(top - 1, 0), columns], grid[np.minimum(top + 1, POINTS - 1), columns]
    return best
