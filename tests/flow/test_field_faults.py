"""Faults that users of other systems met, asked of the scheduler: docs/faults.md names them, and these tests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from offbeat import events as e
from offbeat.flow.scheduler import Scheduler
from offbeat.testing.fake_world import FakeWorld
from tests.flow.conftest import Tape, drive, heavy, plan


def prompts_of(tape: Tape) -> dict[int, int]:
    return {c.group_id: c.prompt_id for c in tape.commands() if isinstance(c, e.Generate)}


def test_a_resume_at_any_event_does_every_iteration_once_and_forgets_no_prompt() -> None:
    """Also at the very last ones: no iteration too many, none missing, no prompt drawn again, none passed over."""
    p = plan(iterations=4, group_size=1, batch_size=4, bound=1, evaluate_every=0)
    whole = Tape()
    assert drive(Scheduler(p), FakeWorld(5, 1, 6, heavy), whole)
    for kept in range(1, len(whole.rows)):
        scheduler, tape = Scheduler(p), Tape(whole.rows[:kept])
        for event, now, commands in tape.rows:
            assert scheduler.handle(event, now) == commands
        now = tape.rows[-1][1]
        world = FakeWorld(kept, 1, 6, heavy, start=now, session=1, version=scheduler.window.newest)
        stop = drive(scheduler, world, tape)
        assert stop is not None
        assert (stop.outcome, scheduler.window.newest) == ("finished", 4), kept
        consumed = [group for _, group in tape.consumed()]
        assert Counter(consumed) == Counter(range(16)), kept
        assert sorted(prompts_of(tape).values())[:16] == list(range(16)), kept
        assert max(tape.staleness()) <= 1, kept


def test_what_is_trained_on_is_as_long_as_what_was_issued_however_often_it_is_killed() -> None:
    """Every third prompt takes ten times as long, and the run is killed before most of them can end."""

    class Lengths(FakeWorld):
        def _generate(self, command: e.Generate) -> None:
            tokens = 100.0 if command.prompt_id % 3 == 0 else 10.0
            self.length = lambda rng: tokens
            super()._generate(command)

    p = plan(iterations=6, group_size=1, batch_size=6, bound=2, evaluate_every=0)
    scheduler, tape, now = Scheduler(p), Tape(), 0.0
    for session in range(200):
        world = Lengths(session, 1, 64, start=now, session=session, version=scheduler.window.newest)
        if drive(scheduler, world, tape, stop_after=60 if session < 12 else None):
            break
        now = world.now
    consumed = {prompts_of(tape)[group] for _, group in tape.consumed()}
    assert consumed == set(range(36)), "in order of issue, long or short"


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_failures_leak_no_capacity(rate: float) -> None:
    """A third of the rewards fail twice: groups are quarantined again and again, and all slots are free at the end."""
    p = plan(iterations=30, bound=1, max_quarantined_in_a_row=10_000, lanes=2, evaluate_every=0)
    scheduler, tape = Scheduler(p), Tape()
    stop = drive(scheduler, FakeWorld(3, 2, 8, heavy, faults={"score": rate}), tape)
    assert stop is not None
    assert stop.outcome == "finished", stop.reason
    assert scheduler.ledger.quarantined > (5 if rate > 0.2 else 0)
    assert sum(len(lane.held) for lane in scheduler.lanes) == sum(
        member.lane in (0, 1) and member.status.name == "RUNNING"
        for group in scheduler.ledger.live.values()
        for member in group.members
    )
    assert scheduler.ledger.outstanding(scheduler.window.newest) == p.group_size * len(scheduler.ledger.live)
    assert len(tape.consumed()) == 30 * p.groups_per_batch


class Swallowing(FakeWorld):
    """Says nothing of the first attempt at these trajectories, for ever; their siblings are well."""

    def __init__(self, swallowed: frozenset[int], attempts: int = 1, **options: Any) -> None:
        super().__init__(0, 1, 16, lambda rng: rng.uniform(10, 60), **options)
        self.swallowed, self.attempts = swallowed, attempts

    def next_event(self) -> e.Event:
        event = super().next_event()
        if isinstance(event, e.Finished) and self._lost(event.trajectory_id, event.attempt):
            return e.Tick()
        if isinstance(event, e.Progress) and any(self._lost(i, 0) for i in event.trajectory_ids):
            return e.Progress(event.lane, (), (), event.busy_slots, event.decoded)
        return event

    def _lost(self, trajectory_id: int, attempt: int) -> bool:
        return trajectory_id in self.swallowed and attempt < self.attempts


def test_responses_that_never_return_are_asked_for_again_alone() -> None:
    """Three of them, stragglers of their groups; their siblings keep what they have, and the run ends."""
    p = plan(iterations=6, bound=1, evaluate_every=0, lease_seconds=100.0)
    tape = Tape()
    stop = drive(Scheduler(p), Swallowing(frozenset({3, 8, 21})), tape)
    assert stop is not None
    assert stop.outcome == "finished", stop.reason
    tries = [c for c in tape.commands() if isinstance(c, e.Generate)]
    again = [i for c in tries for i, attempt in zip(c.trajectory_ids, c.attempts, strict=True) if attempt > 0]
    assert sorted(again) == [3, 8, 21]
    aborted = [i for c in tape.commands() if isinstance(c, e.Abort) for i in c.trajectory_ids]
    assert sorted(aborted) == [3, 8, 21]


def test_a_prompt_that_never_returns_is_quarantined_and_not_retried_for_ever() -> None:
    p = plan(iterations=6, bound=1, evaluate_every=0, max_attempts=3)
    tape = Tape()
    stop = drive(Scheduler(p), Swallowing(frozenset({8}), attempts=100), tape)
    assert stop is not None
    assert stop.outcome == "finished", stop.reason
    [gone] = [c for c in tape.commands() if isinstance(c, e.Quarantine)]
    assert gone.group_id == 4
    assert "failed 3 times; last: trajectory 8" in gone.reason


class Deaf(FakeWorld):
    """Lane 1 takes up no version beyond the first, or, with `ever`, none at all, and goes on beating all the same."""

    def __init__(self, ever: bool) -> None:
        super().__init__(0, 2, 8, lambda rng: rng.uniform(10, 60))
        self.ever, self.beats = ever, 0

    def _load(self, index: int, version: int) -> None:
        if index != 1 or (version == 0 and not self.ever):
            super()._load(index, version)

    def next_event(self) -> e.Event:
        event = super().next_event()
        self.beats += 1
        if isinstance(event, e.Progress) and event.lane == 0 and self.beats % 3 == 0 and self.lanes[1].life:
            return e.Progress(1, (), (), 0, self.lanes[1].decoded)
        return event


@pytest.mark.parametrize("ever", [False, True])
def test_a_lane_that_never_takes_weights_up_is_replaced_and_then_named(ever: bool) -> None:
    p = plan(iterations=400, lanes=2, max_attempts=3, evaluate_every=0, stall_seconds=300.0)
    tape = Tape()
    stop = drive(Scheduler(p), Deaf(ever), tape)
    assert stop is not None
    assert stop.outcome == "failed"
    assert "lane 1" in stop.reason
    assert "did not load version" in stop.reason
    assert sum(isinstance(c, e.StartLane) and c.lane == 1 for c in tape.commands()) > 2


def test_a_learner_lost_while_lanes_stand_still_leaves_none_paused() -> None:
    """`partial` pauses lanes while the learner works; it dies in every second step."""
    p = plan(iterations=15, schedule="partial", lanes=2, live_versions=2, max_attempts=50, evaluate_every=0)
    tape = Tape()
    stop = drive(Scheduler(p), FakeWorld(2, 2, 8, heavy, learn=20.0, faults={"learner": 0.03}), tape)
    assert stop is not None
    assert stop.outcome == "finished", stop.reason
    assert sum(isinstance(event, e.LearnerLost) for event in tape.events()) > 4
    assert any(isinstance(command, e.Pause) for command in tape.commands())


def test_when_all_that_is_sampled_fails_the_run_ends_with_the_reason() -> None:
    class Failing(FakeWorld):
        def next_event(self) -> e.Event:
            event = super().next_event()
            if isinstance(event, e.Finished):
                return e.GenerationFailed(event.trajectory_id, event.attempt, "engine: no such kernel")
            return event

    stop = drive(Scheduler(plan(evaluate_every=0)), Failing(0, 1, 8, heavy), Tape())
    assert stop is not None
    assert stop.outcome == "failed"
    assert "no such kernel" in stop.reason


def test_a_producer_that_is_much_faster_than_the_learner_fills_up_and_waits() -> None:
    """Never more outstanding than the bound admits, and each batch is what its Train names, not a slice of a queue."""
    p = plan(iterations=12, bound=2, evaluate_every=0)
    scheduler, tape = Scheduler(p), Tape()
    world = FakeWorld(0, 1, 64, lambda rng: rng.uniform(1, 2), learn=200.0)
    while not scheduler.stopped:
        event = world.next_event()
        commands = scheduler.handle(event, world.now)
        tape.record(event, world.now, commands)
        assert scheduler.ledger.outstanding(scheduler.window.newest) <= p.outstanding_limit
        for command in commands:
            world.perform(command)
    issued, consumed = set(prompts_of(tape)), [group for _, group in tape.consumed()]
    assert len(consumed) == len(set(consumed)) == 12 * p.groups_per_batch
    assert set(consumed) == issued
