"""Random numbers that need no module of chance: a stream is its seed, so what is drawn from it is drawn again.

Invariant: the n-th number of a seed is the same on every machine and in every process (64-bit integer arithmetic
only, up to the last digit of `math.log` and `math.cos` for normal numbers). Knows no clock and no other stream.
"""

from __future__ import annotations

import math

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Draws:
    """splitmix64 (Steele, Lea, Flood 2014) from `seed`; get seeds from `streams.stream_seed`."""

    def __init__(self, seed: int) -> None:
        self._word = seed & _MASK

    def uniform(self) -> float:
        """A number in [0, 1) with 53 random bits."""
        return (self._next() >> 11) * 2.0**-53

    def below(self, count: int) -> int:
        """A whole number in [0, count). The bias of the product is below count / 2^64."""
        return (self._next() * count) >> 64

    def normal(self) -> float:
        """A standard normal number (Box and Muller 1958)."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())

    def _next(self) -> int:
        self._word = (self._word + _GOLDEN) & _MASK
        word = self._word
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
        return word ^ (word >> 31)
