"""Memory that was freed goes back to the system.

Tensors are allocated aligned, and glibc before 2.38 does not find the holes that freed ones leave (its bug 14581): the
heap of a study's worker grew by about 1 MB an update, most of it free. Trimming hands whole free pages back,
wherever they lie. Where the C library has no such call nothing is done.
"""

from __future__ import annotations

import ctypes

TRIM_EVERY = 50
"""Turns between two trims of a worker; one takes some 10 ms of a small model's worker."""


def trim_heap() -> None:
    """Give free pages of the heap back, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Trimming:
    """`trim_heap` once in TRIM_EVERY turns: for those who train on, or sample with, one version after another."""

    def __init__(self) -> None:
        self._turns = 0

    def turn(self) -> None:
        self._turns += 1
        if self._turns % TRIM_EVERY == 0:
            trim_heap()
