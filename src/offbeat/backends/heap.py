"""Memory that was freed goes back to the system.

Tensors are allocated aligned, and glibc before 2.38 does not find the holes that freed ones leave (its bug 14581): the
heap of a process that trains grows by about 1 MB an iteration, most of it free. Trimming hands whole free pages back,
wherever they lie. Other C libraries have no such call and no such need.
"""

from __future__ import annotations

import ctypes

TRIM_EVERY = 50
"""Versions between two trims of a worker; one takes some 10 ms."""


def trim_heap() -> None:
    """Give free pages of the heap back, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def trim_heap_now_and_then(version: int) -> None:
    """`trim_heap` once in TRIM_EVERY versions: for those who train on or sample with one version after another."""
    if version % TRIM_EVERY == 0:
        trim_heap()
