"""Certificates: an interval that is proved to hold a price, from a contraction, a sign change or a closed form.

*The interval, not the iteration, is the claim*: however a price was found, `contracted` bounds its distance from the
fixed point by what one more application of the map moves it. Double precision; ROUNDING is added on both sides for it.
Knows no demand model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from offbeat.market.demand import Array
from offbeat.market.industry import Industry

ROUNDING = 1e-12
"""Relative slack for rounding, far above what a few dozen operations in double precision lose."""


@dataclass(frozen=True)
class Certified:
    """`prices`, `profits` (n,); `residual`: how far the conditions are from holding, in price; `interval` (n, 2);
    `why`: the proof.
    """

    prices: Array
    profits: Array
    residual: float
    interval: Array
    slope: float
    why: str


def log_lambert(y: Array) -> Array:
    """W(e^y): the w > 0 with w + ln w = y, by Newton's method, without overflow."""
    y = np.asarray(y, dtype=np.float64)
    w = np.where(y > 1, np.maximum(y - np.log(np.maximum(y, 1.0)), 0.5), np.exp(np.minimum(y, 1.0)))
    for _ in range(60):
        following = w * (1 + y - np.log(w)) / (1 + w)
        if np.allclose(following, w, rtol=1e-16, atol=0):
            break
        w = following
    return w


def contracted(
    industry: Industry, respond: Callable[[Array], Array], start: Array, slope: float, why: str, logs: bool = False
) -> Certified:
    """Iterate a best-response map that contracts with `slope` (in log price if `logs`), and bound what is left."""
    prices = start
    for _ in range(10_000):
        following = respond(prices)
        done = float(np.abs(following - prices).max()) <= 4e-16 * float(np.abs(prices).max())
        prices = following
        if done:
            break
    answer = respond(prices)
    residual = float(np.abs(answer - prices).max())
    if logs:
        left = float(np.abs(np.log(answer / prices)).max()) + ROUNDING
        interval = np.stack([prices * np.exp(-left / (1 - slope)), prices * np.exp(left / (1 - slope))], axis=1)
    else:
        left = (residual + ROUNDING * float(np.abs(prices).max())) / (1 - slope)
        interval = np.stack([prices - left, prices + left], axis=1)
    return Certified(prices, industry.flow(prices), residual, interval, slope, why)


def root(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """An interval, as short as doubles allow, with function(low) < 0 <= function(high) for an increasing function."""
    while True:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            return low, high
        low, high = (middle, high) if function(middle) < 0 else (low, middle)


def bracketed(industry: Industry, low: Array, high: Array, why: str) -> Certified:
    prices = 0.5 * (low + high)
    slack = ROUNDING * float(np.abs(prices).max())
    interval = np.stack([low - slack, high + slack], axis=1)
    residual = float((high - low).max())
    return Certified(prices, industry.flow(prices), residual, interval, 0.0, f"{why}, whose sign changes within")


def exact(industry: Industry, prices: Array, why: str, profits: Array | None = None) -> Certified:
    slack = ROUNDING * float(np.abs(prices).max(initial=1.0))
    interval = np.stack([prices - slack, prices + slack], axis=1)
    return Certified(prices, industry.flow(prices) if profits is None else profits, 0.0, interval, 0.0, why)
