"""Bounded-staleness invariant (C3), no deadlock, nothing starts too old; the negative control of the start rule."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat import events as e
from offbeat.flow.ledger import LiveGroup
from offbeat.flow.scheduler import Scheduler
from offbeat.flow.schedules.multi_version import MultiVersion
from offbeat.flow.staleness import admits, capacity, may_start, staleness
from offbeat.flow.window import Window
from offbeat.testing.fake_world import FakeWorld

from .conftest import Tape, drive, heavy, plan

shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**31),
        "bound": st.integers(0, 4),
        "group_size": st.sampled_from([1, 2, 4]),
        "groups": st.integers(1, 4),
        "fill": st.floats(0, 1),
        "lanes": st.integers(1, 3),
        "slots": st.integers(1, 12),
        "learn": st.floats(0.1, 40),
        "versions": st.integers(1, 5),
    }
)


def make(shape: dict, **changes: object) -> tuple[Scheduler, FakeWorld]:
    batch = shape["group_size"] * shape["groups"]
    most = (shape["bound"] + 1) * batch
    p = plan(
        group_size=shape["group_size"],
        batch_size=batch,
        bound=shape["bound"],
        lanes=shape["lanes"],
        live_versions=shape["versions"],
        outstanding_limit=batch + int(shape["fill"] * (most - batch)),
        **changes,
    )
    return Scheduler(p), FakeWorld(shape["seed"], shape["lanes"], shape["slots"], length=heavy, learn=shape["learn"])


@settings(max_examples=300, deadline=None)
@given(shapes)
def test_bounded_staleness_and_no_deadlock(shape: dict) -> None:
    scheduler, world = make(shape)
    tape = Tape()
    stop = drive(scheduler, world, tape)
    assert stop is not None
    assert stop.outcome == "finished"
    ages = tape.staleness()
    assert len(ages) == 12 * shape["groups"]
    assert all(0 <= age <= shape["bound"] for age in ages)


def test_two_thousand_random_runs_keep_the_bound_and_attain_it() -> None:
    reached: dict[int, int] = {}
    for seed in range(2000):
        rng = random.Random(seed)
        bound = rng.randint(0, 3)
        shape = {
            "seed": seed,
            "bound": bound,
            "group_size": rng.choice([1, 2]),
            "groups": rng.randint(1, 3),
            "fill": rng.random(),
            "lanes": rng.randint(1, 2),
            "slots": rng.randint(1, 10),
            "learn": rng.uniform(0.5, 20),
            "versions": bound + 1,
        }
        scheduler, world = make(shape, iterations=6, evaluate_every=0)
        tape = Tape()
        stop = drive(scheduler, world, tape)
        assert stop is not None
        assert stop.outcome == "finished"
        worst = max(tape.staleness())
        assert worst <= bound
        reached[bound] = max(worst, reached.get(bound, 0))
    assert reached == {0: 0, 1: 1, 2: 2, 3: 3}


def issued_at(tape: Tape) -> list[int]:
    """For every group, in the order of issue: the staleness it would have had in the next batch to start."""
    found: dict[int, int] = {}
    iteration = 0
    for command in tape.commands():
        if isinstance(command, e.Train):
            iteration = command.iteration + 1
        elif isinstance(command, e.Generate):
            found.setdefault(command.group_id, iteration - command.version)
    return list(found.values())


@settings(max_examples=300, deadline=None)
@given(shapes, st.sampled_from(["drain", "evict", "sync", "one-step-off"]))
def test_nothing_starts_too_old(shape: dict, rule: str) -> None:
    """Whatever the rule at the bound and however few lanes: what starts could be in the next batch, and C3 holds."""
    schedule = rule if rule in ("sync", "one-step-off") else "multi-version"
    bound = {"sync": 0, "one-step-off": 1}.get(rule, shape["bound"])
    scheduler, world = make(shape | {"bound": bound}, schedule=schedule, evicts=rule == "evict")
    tape = Tape()
    stop = drive(scheduler, world, tape)
    assert stop is not None
    assert stop.outcome == "finished"
    assert max(issued_at(tape)) <= bound
    assert all(0 <= age <= bound for age in tape.staleness())


def test_one_lane_that_evicts_ends_and_could_have_been_taken_up_anywhere() -> None:
    """K = 1, one lane, heavy tails: issuing too old broke C3 in half of these, and again on every resume."""
    for seed in range(60):
        p = plan(batch_size=2, outstanding_limit=4, bound=1, live_versions=2, evicts=True)
        tape = Tape()
        stop = drive(Scheduler(p), FakeWorld(seed, 1, 9, length=heavy, learn=9.1), tape)
        assert stop is not None
        assert stop.outcome == "finished"
        assert max(tape.staleness()) <= 1
        replayed = Scheduler(p)
        assert all(replayed.handle(event, now) == commands for event, now, commands in tape.rows)


class AdmissionAlone(MultiVersion):
    """Negative control: admission as it is, but a batch takes any ready groups that are not too old."""

    def batch(self, window: Window) -> list[LiveGroup] | None:
        fresh = [g for g in window.ready() if staleness(window.iteration, g.version) <= window.plan.bound]
        newest_first = sorted(fresh, key=lambda g: -g.version)
        size = window.plan.groups_per_batch
        return newest_first[:size] if len(newest_first) >= size else None


def test_admission_alone_deadlocks() -> None:
    """Without the start rule old trajectories miss their last batch and block admission for ever."""
    stuck = 0
    for seed in range(60):
        p = plan(bound=1, iterations=20, stall_seconds=500.0, evaluate_every=0)
        scheduler = Scheduler(p)
        scheduler.schedule = AdmissionAlone()
        stop = drive(scheduler, FakeWorld(seed, 1, 12, length=heavy, learn=3.0), Tape())
        assert stop is not None
        stuck += stop.outcome == "failed" and "no progress" in stop.reason
    assert stuck >= 20


@given(st.integers(0, 4), st.integers(1, 5), st.integers(0, 20), st.lists(st.integers(0, 6), min_size=1, max_size=7))
def test_the_oldest_batch_may_always_start_once_all_has_finished(
    bound: int, batch: int, iteration: int, ages: list[int]
) -> None:
    """Theorem 2 of docs/theory.md: from any state that keeps the invariant, taking the oldest keeps it."""
    versions = sorted(iteration - age for age in ages if age <= iteration)

    def outstanding(u: int) -> int:
        return sum(v <= u for v in versions)

    kept = all(outstanding(u) <= capacity(u, iteration, bound, batch) for u in range(-1, iteration + 1))
    if not kept or len(versions) < batch:
        return
    rest = versions[batch:]
    assert may_start(lambda u: sum(v <= u for v in rest), iteration, iteration, bound, batch)


def test_admission_counts_the_trajectory_itself() -> None:
    assert admits(lambda u: 7, version=3, newest=3, iteration=3, bound=0, batch=8, size=1)
    assert not admits(lambda u: 8, version=3, newest=3, iteration=3, bound=0, batch=8, size=1)
    assert not admits(lambda u: 0, version=2, newest=3, iteration=3, bound=0, batch=8, size=1)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_sync_and_bound_zero_take_the_same_batches(bound: int) -> None:
    tapes = []
    for name, k in (("sync", 0), ("multi-version", 0)):
        scheduler = Scheduler(plan(schedule=name, bound=k, lanes=1))
        tape = Tape()
        drive(scheduler, FakeWorld(bound, 1, 6, length=heavy), tape)
        tapes.append(list(tape.commands()))
    assert tapes[0] == tapes[1]
