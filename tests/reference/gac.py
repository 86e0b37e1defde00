"""GAC and the delayed quadratic, slow and shaped like the formulas: lists of floats, one gradient at a time.

Projection and skip: arXiv 2603.01501; the gains between the thresholds are the candidates offbeat offers.
"""

from __future__ import annotations

import math

import numpy as np


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def norm(a: list[float]) -> float:
    return math.sqrt(dot(a, a))


def cosine(a: list[float], b: list[float]) -> float:
    return dot(a, b) / (norm(a) * norm(b))


def gain(mode: str, c: float, c_low: float, c_high: float) -> float:
    return {
        "orth": 0.0,
        "cap": c_low * math.sqrt(1 - c**2) / (c * math.sqrt(1 - c_low**2)),
        "ratio": c_low / c,
        "ramp": max(0.0, (c_high - c) / (c_high - c_low)),
    }[mode]


def projected(g: list[float], reference: list[float], alpha: float) -> list[float]:
    """alpha * (the part of g along the reference) + the rest."""
    unit = [x / norm(reference) for x in reference]
    along = [dot(g, unit) * u for u in unit]
    return [alpha * p + (x - p) for x, p in zip(g, along, strict=True)]


def controlled(
    gradients: list[list[float]], mode: str, c_low: float, c_high: float, reference: str, on_skip: str, max_skips: int
) -> list[list[float] | None]:
    """What the optimizer gets at each step, None where the step is skipped."""
    given: list[list[float] | None] = []
    previous: list[float] | None = None
    skips = 0
    for g in gradients:
        c = None if previous is None else cosine(g, previous)
        if c is None or previous is None or c <= c_low:
            out: list[float] | None = g
        elif c <= c_high or (max_skips and skips >= max_skips):
            out = projected(g, previous, gain(mode, c, c_low, c_high))
        else:
            out = None
        skips = skips + 1 if out is None else 0
        if out is not None or on_skip == "update":
            previous = g if reference == "raw" or out is None else out
        given.append(out)
    return given


def plain_limit(s: int) -> float:
    """x[t+1] = x[t] - a x[t-s] is stable for 0 < a < this: the root mu = exp(i pi / (2s+1)) is on the unit circle."""
    return 2 * math.sin(math.pi / (2 * (2 * s + 1)))


def stationary(a: float, s: int, mode: str, c_low: float, points: int = 8192) -> tuple[float, float]:
    """(cosine of consecutive gradients, mean square of x) of the delayed quadratic with noise under GAC, no skip.

    u[t] = x[t-s] + xi[t] is the gradient with unit noise, x[t+1] = x[t] - a (u[t] - beta u[t-1]) the controlled step:
    in many dimensions all coefficients are those of the mean, so beta = (1 - gain(c)) c with the stationary cosine
    c = E<u[t], u[t-1]> / E|u|^2, and with z = exp(i w) the noise is answered by
        X = -a (1 - beta / z) / (z - 1 + a z^-s (1 - beta / z)) Xi,    U = (1 + z^-s X / Xi) Xi.
    c is where the c that goes in by beta comes out as the correlation of u: found by bisection.
    """

    angles = 2 * np.pi * (np.arange(points) + 0.5) / points

    def answered(c: float) -> tuple[float, float]:
        beta = (1 - gain(mode, c, c_low, 1.0)) * c if mode != "observe" and c > c_low else 0.0
        if largest_root(a, s, beta) >= 1:
            return 1.0, math.inf  # it grows, so that the noise is lost in the signal and c rises
        z = np.exp(1j * angles)
        turned = a * (1 - beta / z)
        x = -turned / (z - 1 + turned * z**-s)
        u_square = abs(1 + x * z**-s) ** 2
        return float((u_square * np.cos(angles)).sum() / u_square.sum()), float((abs(x) ** 2).mean())

    low, high = -1.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if answered(middle)[0] > middle else (low, middle)
    return low, answered(low)[1]


def largest_root(a: float, s: int, beta: float = 0.0) -> float:
    """How fast x[t+1] = x[t] - a (x[t-s] - beta x[t-s-1]) grows: the largest |z| with
    z^(s+2) - z^(s+1) + a (z - beta) = 0.
    """
    polynomial = np.zeros(s + 3)
    polynomial[:2] += [1.0, -1.0]
    polynomial[-2:] += [a, -a * beta]
    return float(np.abs(np.roots(polynomial)).max())
