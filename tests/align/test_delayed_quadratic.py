"""The test bed: a quadratic whose gradient is s steps old. Its limit is known exactly, and so is what GAC makes of it.

x[t+1] = x[t] - a x[t-s] is stable for 0 < a < 2 sin(pi / (2 (2s + 1))), about pi / (2s): the S eta law. With noise and
in many dimensions the stationary cosine and spread under GAC follow from its spectrum (tests/reference/gac.py).
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from offbeat.align import GAC
from tests.reference.gac import largest_root, plain_limit, stationary

torch.set_num_threads(1)


class DelayedQuadratic:
    """|x|^2 / 2 in `size` dimensions by SGD; gradients are `s` steps old and carry `noise` times unit noise."""

    def __init__(self, s: int, rate: float, size: int, noise: float = 1.0, **chosen: object) -> None:
        self._random = torch.Generator().manual_seed(s)
        self.x = nn.Parameter(self._normal(size))
        self.optimizer = torch.optim.SGD([self.x], lr=rate)
        self.gac = GAC(self.optimizer, update_cosine=False, **chosen)
        self._past = [self.x.detach().clone() for _ in range(s + 1)]
        self._s, self._noise = s, noise

    def _normal(self, size: int) -> torch.Tensor:
        return torch.randn(size, generator=self._random, dtype=torch.float64)

    def run(self, steps: int) -> tuple[list[float], list[float]]:
        """Mean square of x and cosine after each step; ends early where it is hopeless."""
        squares, cosines = [], []
        for _ in range(steps):
            self.x.grad = self._past[-1 - self._s] + self._noise * self._normal(self.x.numel())
            self.optimizer.step()
            self._past.append(self.x.detach().clone())
            squares.append(self._past[-1].square().mean().item())
            cosines.append(self.gac.last.cosine or 0.0)
            if squares[-1] > 1e9:
                break
        return squares, cosines


def late(values: list[float]) -> float:
    """Mean of the last two thirds."""
    kept = values[len(values) // 3 :]
    return sum(kept) / len(kept)


@pytest.mark.parametrize("s", [0, 1, 4, 8, 16])
def test_the_plain_limit_is_exact(s: int) -> None:
    """Without noise: growth a step is the largest root's, 1 at the limit."""
    limit = plain_limit(s)
    assert largest_root(limit, s) == pytest.approx(1, abs=1e-6)
    for share in (0.98, 1.02):
        squares, _ = DelayedQuadratic(s, share * limit, 1, noise=0.0, mode="observe").run(1500)
        turns = 2 * (2 * s + 1)  # the period at the limit
        factor = (sum(squares[-turns:]) / sum(squares[-11 * turns : -10 * turns])) ** (1 / (20 * turns))
        assert factor == pytest.approx(largest_root(share * limit, s), abs=1e-3)
        assert (factor < 1) == (share < 1)


@pytest.mark.parametrize("mode", ["observe", "orth", "cap", "ratio"])
@pytest.mark.parametrize(("s", "share"), [(0, 0.5), (4, 0.7), (8, 0.9), (16, 0.8)])
def test_cosine_and_spread_are_the_theorys(s: int, share: float, mode: str) -> None:
    """Inside the plain limit: staleness raises the cosine, GAC lowers cosine and spread, by what the spectrum says."""
    rate = share * plain_limit(s)
    cosine, square = stationary(rate, s, mode, c_low=0.05)
    bench = DelayedQuadratic(s, rate, 400, mode=mode, c_low=0.05, c_high=1.0)
    squares, cosines = bench.run(1500)
    assert late(cosines) == pytest.approx(cosine, abs=0.015)
    assert late(squares) == pytest.approx(square, rel=0.06)


@pytest.mark.parametrize("mode", ["orth", "cap", "ratio"])
@pytest.mark.parametrize(("s", "factor"), [(8, 2.0), (16, 3.0)])
def test_beyond_the_plain_limit_gac_stays_where_theory_says(s: int, factor: float, mode: str) -> None:
    """Several times the plain limit: plain descent is lost, GAC stays finite where its spectrum puts it."""
    rate = factor * plain_limit(s)
    lost, _ = DelayedQuadratic(s, rate, 400, mode="observe").run(1500)
    assert lost[-1] > 1e9
    cosine, square = stationary(rate, s, mode, c_low=0.05)
    squares, cosines = DelayedQuadratic(s, rate, 400, mode=mode, c_low=0.05, c_high=1.0).run(1500)
    assert late(cosines) == pytest.approx(cosine, abs=0.01)
    assert late(squares) == pytest.approx(square, rel=0.03)


def test_the_direction_matters() -> None:
    """As much shrinking without the direction, or into a random one, leaves a larger spread."""
    rate = 2 * plain_limit(16)
    spread = {}
    for direction in ("previous", "none", "random"):
        chosen = {"mode": "cap", "c_low": 0.05, "c_high": 1.0, "direction": direction}
        spread[direction] = late(DelayedQuadratic(16, rate, 100, **chosen).run(1500)[0])
    assert spread["none"] > 2 * spread["previous"]
    assert spread["random"] > 1.5 * spread["previous"]


def test_without_noise_a_stale_gradient_locks_and_the_watchdog_frees_it() -> None:
    """The lock: a stale gradient repeats itself, is skipped, so nothing moves and it repeats itself."""
    chosen = {"mode": "ratio", "c_low": 0.1, "c_high": 0.5}
    locked = DelayedQuadratic(4, 0.2, 3, noise=0.0, max_skips=0, **chosen)
    squares, _ = locked.run(100)
    assert squares[-1] == squares[0]  # the first step was all
    assert locked.gac.longest_skips == 99
    freed = DelayedQuadratic(4, 0.2, 3, noise=0.0, max_skips=3, **chosen)
    squares, _ = freed.run(2000)
    assert squares[-1] < 1e-3 * squares[0]
    assert freed.gac.longest_skips == 3
