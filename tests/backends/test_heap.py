"""Memory that was freed goes back to the system, and a C library that cannot is no error."""

from __future__ import annotations

import ctypes

import psutil
import pytest
import torch

from offbeat.backends import heap


def rss() -> int:
    return int(psutil.Process().memory_info().rss)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library has no malloc_trim")
def test_holes_between_tensors_go_back_to_the_system() -> None:
    start = rss()
    tensors = [torch.ones(25_000) for _ in range(2_000)]  # 100 kB each, 200 MB
    kept = tensors[::50]
    del tensors
    before = rss()
    if before - start < 100e6:
        pytest.skip("this allocator gives memory back, or had enough of it, without being asked")
    heap.trim_heap()
    assert before - rss() > 50e6
    assert all(float(tensor.sum()) == 25_000 for tensor in kept)


def test_trims_once_in_so_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[None] = []
    monkeypatch.setattr(heap, "trim_heap", lambda: trims.append(None))
    trimming = heap.Trimming()
    for _ in range(2 * heap.TRIM_EVERY):
        trimming.turn()
    assert len(trims) == 2


def test_a_c_library_without_the_call_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: object())
    heap.trim_heap()
