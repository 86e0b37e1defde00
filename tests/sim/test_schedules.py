"""All schedules in the simulator: what each promises, and the shapes that the literature gives their differences."""

from __future__ import annotations

from itertools import pairwise

import pytest

from offbeat.sim.cluster import Cluster, changed
from offbeat.sim.simulate import simulate
from tests.sim.clusters import cluster

ALL = ("multi-version", "sync", "one-step-off", "partial", "in-flight", "repack")


def heavy(**values: object) -> Cluster:
    """Lengths with a long tail, a learner of about the time of rollout."""
    about = cluster(
        accelerators=16,
        decode={"floor_seconds": 0.1, "per_sequence_seconds": 0.001},
        training={"fixed_seconds": 5.0, "work": 300.0},
        lengths={"kind": "lognormal", "median": 40, "sigma": 1.2, "cap": 900, "correlation": 0.4},
        schedule={"group_size": 4, "train_batch_size": 128, "max_staleness": 3, "rebalance_seconds": 20.0},
        run={"iterations": 24, "warmup": 6},
    )
    return changed(about, **values)


@pytest.mark.parametrize("schedule", ALL)
def test_every_schedule_runs_and_its_numbers_agree(schedule: str) -> None:
    about = heavy()
    result = simulate(about, schedule).result
    rate, minutes = result["trajectories_per_second"], result["step_minutes"]
    assert rate == pytest.approx(128 / (60 * minutes))
    assert result["tokens_per_second"] == pytest.approx(rate * result["length_trained"])
    assert sum(result["staleness_histogram"].values()) == pytest.approx(1)
    assert 0 <= result["learner_idle"] < 1
    assert result["rollout_only_minutes"] == pytest.approx(minutes * result["learner_idle"])
    assert 0 < result["slots_busy"] <= 1
    bound = {"sync": 0, "one-step-off": 1, "multi-version": 3}.get(schedule)
    assert bound is None or result["staleness_max"] <= bound


def test_order_of_the_schedules() -> None:
    """Overlap beats taking turns, several versions beat waiting for each batch's longest; staleness pays for it."""
    results = {schedule: simulate(heavy(), schedule).result for schedule in ALL}
    rate = {name: result["trajectories_per_second"] for name, result in results.items()}
    assert rate["sync"] < rate["one-step-off"] < rate["multi-version"]
    assert rate["sync"] < rate["partial"] < rate["multi-version"]
    assert results["sync"]["staleness_max"] == 0
    assert results["multi-version"]["moved_bytes"] == 0, "nothing was said of bytes a token"


def test_k_sweep_is_monotone_and_saturates() -> None:
    """C11: more staleness allowed, more throughput, with less and less to gain (up to noise of a percent)."""
    rates = []
    for k in (0, 1, 2, 3, 5):
        about = heavy(schedule={"max_staleness": k, "over_dispatch": 3.0, "max_versions": 1})
        rates.append(simulate(about, "multi-version").result["trajectories_per_second"])
    gains = [b / a for a, b in pairwise(rates)]
    assert all(gain > 0.99 for gain in gains)
    assert gains[0] > gains[-1]
    assert rates[-1] > 1.3 * rates[0]


def test_bubble_bounds_the_gain() -> None:
    """C7: rollout of sync waits max / mean as long as a rollout without bubbles would."""
    result = simulate(heavy(), "sync").result
    assert result["bubble"] == pytest.approx(0.9, abs=0.08)


def test_keys_and_values_move_or_are_computed_again() -> None:
    """C12: moving with the cache costs bytes, without it prefill; a slow link favours prefill."""
    schedule = {"max_versions": 1}
    slow_link = {"bytes_per_token": 1e6, "gigabytes_per_second": 1e-4}
    moved = simulate(heavy(schedule=schedule, transfer={"bytes_per_token": 1e6}), "multi-version").result
    again = simulate(heavy(schedule=schedule | {"migration": "prefill"}), "multi-version").result
    dragged = simulate(heavy(schedule=schedule, transfer=slow_link), "multi-version").result
    assert moved["moved_bytes"] > 0 == again["moved_bytes"]
    assert dragged["trajectories_per_second"] < again["trajectories_per_second"]


def test_eviction_favours_short_responses() -> None:
    """C13: what evicts trains on shorter responses than what drains, when the tail exceeds the bound."""
    tail = {"lengths": {"sigma": 1.6, "cap": 4000}, "schedule": {"max_staleness": 1, "over_dispatch": 1.5}}
    drain = simulate(heavy(**tail), "multi-version").result
    evict = simulate(heavy(**tail | {"schedule": tail["schedule"] | {"at_bound": "evict"}}), "multi-version").result
    assert evict["evicted_groups"] > 0 == drain["evicted_groups"]
    assert evict["length_trained"] < 0.95 * drain["length_trained"]
    assert evict["trajectories_per_second"] > drain["trajectories_per_second"]


def test_environments_hold_slots() -> None:
    """Waiting for tools costs time but no decoding: sync takes longer by the waits of the slowest."""
    quick = simulate(heavy(tools={"turns": 4, "seconds": 0.0}), "sync").result
    slow = simulate(heavy(tools={"turns": 4, "seconds": 30.0, "skew": 1.0}), "sync").result
    assert quick["step_minutes"] == pytest.approx(simulate(heavy(), "sync").result["step_minutes"], rel=0.01)
    assert slow["rollout_only_minutes"] > quick["rollout_only_minutes"] + 1


def test_room_for_keys_and_values_is_kept() -> None:
    """With room for little, responses are parked; everything is still done, later."""
    from offbeat import events as e

    parked = []
    about = heavy(cache_tokens=1500, schedule={"max_versions": 1})

    def observe(event: e.Event, now: float, commands: object) -> None:
        if isinstance(event, e.Progress):
            parked.append(len(event.parked))
            assert event.cached <= 1500

    tight = simulate(about, "multi-version", observers=[observe]).result
    assert parked
    assert max(parked) > 0
    assert tight["trajectories_per_second"] < simulate(heavy(), "multi-version").result["trajectories_per_second"]


def test_stragglers_slow_the_synchronous_most() -> None:
    slow = {"slow_share": 0.25, "slow_factor": 3.0}
    losses = {}
    for schedule in ("sync", "multi-version"):
        before = simulate(heavy(), schedule).result["trajectories_per_second"]
        losses[schedule] = simulate(heavy(faults=slow), schedule).result["trajectories_per_second"] / before
    assert losses["sync"] < losses["multi-version"] <= 1.001
