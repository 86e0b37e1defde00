"""GAC and the delayed quadratic, slow and shaped like the formulas: lists of floats, one gradient at a time.

Projection and skip: arXiv 2603.01501; the gains between the thresholds are the candidates offbeat offers.
"""

from __future__ import annotations

import cmath
import math


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


def circular_limit(s: int, c_low: float) -> float:
    """The same for gradients that turn evenly in a plane, with `cap` (c_low = 0: `orth`), raw reference, no skip.

    z[t] = exp(i w t) has z[t-s] at an angle w from the reference z[t-s-1]. `cap` turns it to the angle phi with
    cos(phi) = c_low and leaves the part across, sin(w), so that the step is a sin(w) / sin(phi) long:
    z[t+1] - z[t] = -a sin(w) / sin(phi) exp(i phi) z[t-s-1]. Phases: (s + 3/2) w = pi / 2 + phi.
    Lengths: 2 sin(w / 2) = a sin(w) / sin(phi).
    """
    phi = math.acos(c_low)
    w = (math.pi / 2 + phi) / (s + 1.5)
    assert math.cos(w) > c_low, "outside the projected regime"
    return math.sin(phi) / math.cos(w / 2)


def largest_root(a: float, s: int) -> float:
    """Largest |mu| with mu^(s+1) - mu^s + a = 0: how fast x[t+1] = x[t] - a x[t-s] grows. By Durand and Kerner."""
    coefficients = [1.0, -1.0, *[0.0] * (s - 1), a] if s else [1.0, a - 1.0]
    degree = len(coefficients) - 1
    roots = [(0.4 + 0.9j) ** k for k in range(degree)]
    for _ in range(2000):
        for i, root in enumerate(roots):
            value = complex(0)
            for coefficient in coefficients:
                value = value * root + coefficient
            others = math.prod((root - other for j, other in enumerate(roots) if j != i), start=complex(1))
            roots[i] = root - value / others
    assert all(cmath.isfinite(root) for root in roots)
    return max(abs(root) for root in roots)
