"""The delayed quadratic's stability from its characteristic polynomial z^(s+1) - z^s + a: slow, by numpy's roots."""

from __future__ import annotations

import numpy as np


def spectral_radius(step: float, lag: int) -> float:
    """Largest |z| of x_{t+1} = x_t - step x_{t-lag}; below 1 the recursion dies out."""
    polynomial = np.zeros(lag + 2)
    polynomial[0] = 1.0
    polynomial[1] -= 1.0
    polynomial[-1] += step
    return float(np.abs(np.roots(polynomial)).max())
