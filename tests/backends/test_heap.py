"""Memory that was freed goes back to the system, and a C library that cannot is no error."""

from __future__ import annotations

import ctypes

import psutil
import pytest
import torch

from offbeat.backends import heap


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library has no malloc_trim")
def test_holes_between_tensors_go_back_to_the_system() -> None:
    process = psutil.Process()
    tensors = [torch.ones(25_000) for _ in range(2_000)]  # 100 kB each, 200 MB
    kept = tensors[::50]
    del tensors
    before = process.memory_info().rss
    heap.trim_heap()
    assert before - process.memory_info().rss > 50e6
    assert all(float(tensor.sum()) == 25_000 for tensor in kept)


def test_trims_once_in_so_many_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[None] = []
    monkeypatch.setattr(heap, "trim_heap", lambda: trims.append(None))
    for version in range(1, 2 * heap.TRIM_EVERY + 1):
        heap.trim_heap_now_and_then(version)
    assert len(trims) == 2


def test_a_c_library_without_the_call_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: object())
    heap.trim_heap()
