"""What every simulation rests on: the order law, numbers that never change, time that never goes back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.eventtime.clock import VirtualClock
from offbeat.eventtime.draws import Draws
from offbeat.eventtime.heap import EventHeap
from offbeat.eventtime.streams import stream_seed

TIMES = st.lists(st.one_of(st.integers(0, 3).map(float), st.floats(0, 10)), max_size=40)


@given(TIMES)
def test_order_law(times: list[float]) -> None:
    """By time, then by the order of pushing; `object()` has no order of its own, so entries are never compared."""
    heap: EventHeap[tuple[int, object]] = EventHeap()
    for index, at in enumerate(times):
        heap.push(at, (index, object()))
    seen = []
    while heap:
        earliest = heap.earliest
        at, (index, _) = heap.pop()
        assert at == earliest
        seen.append((at, index))
    assert seen == sorted((at, index) for index, at in enumerate(times))
    assert heap.earliest == math.inf


def test_what_has_no_place_in_time_is_refused() -> None:
    with pytest.raises(ValueError, match="nan"):
        EventHeap[str]().push(math.nan, "never")


def test_draws_are_splitmix64() -> None:
    """Reference outputs of the published generator for seed 1234567."""
    draws = Draws(1234567)
    words = [draws._next() for _ in range(5)]
    assert words == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.integers(0, 2**63 - 1), st.integers(1, 1000))
def test_draws_stay_in_their_range(seed: int, count: int) -> None:
    draws = Draws(seed)
    for _ in range(20):
        assert 0.0 <= draws.uniform() < 1.0
        assert 0 <= draws.below(count) < count
        assert math.isfinite(draws.normal())


def test_normal_draws_have_mean_zero_and_variance_one() -> None:
    draws = Draws(stream_seed(0, "normal"))
    sample = [draws.normal() for _ in range(20_000)]
    mean = sum(sample) / len(sample)
    assert abs(mean) < 4 / math.sqrt(len(sample))
    assert abs(sum(x * x for x in sample) / len(sample) - 1) < 4 * math.sqrt(2 / len(sample))


def test_a_stream_is_its_name_for_ever() -> None:
    """A number written down once: logs of earlier versions are replayed with it."""
    assert stream_seed(0, "trajectory", 17) == 6923160826427713373
    assert stream_seed(0, "trajectory", 17) == stream_seed(0, "trajectory", "17")
    seeds = {stream_seed(seed, "trajectory", n) for seed in range(10) for n in range(100)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)


@given(st.lists(st.floats(0, 1e6)))
def test_time_never_goes_back(moments: list[float]) -> None:
    clock = VirtualClock()
    for moment in moments:
        before = clock.now
        assert clock.advance(moment) == clock.now == max(before, moment)
