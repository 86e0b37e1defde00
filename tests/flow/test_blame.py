"""Zombie rule and blame: an earlier life of a lane changes nothing; only time in which the world listened counts."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from offbeat import events as e
from offbeat.flow.ledger import Status
from offbeat.flow.scheduler import Scheduler
from offbeat.testing.fake_world import EMPTY_REPORT, FakeWorld

from .conftest import Tape, drive, heavy, plan

LaneEvent = e.LaneReady | e.LaneLost | e.VersionLoaded | e.Progress
worlds = st.fixed_dictionaries(
    {"seed": st.integers(0, 2**31), "lanes": st.integers(1, 4), "slots": st.integers(1, 8), "learn": st.floats(0.5, 40)}
)


# -- lives -----------------------------------------------------------------------------------------------------


def run_with_echoes(shape: dict, echoes: bool) -> tuple[Scheduler, Tape]:
    """Every lane event names its life; with `echoes`, what earlier lives said is said again, at any time."""
    rng = random.Random(shape["seed"])
    scheduler = Scheduler(plan(lanes=shape["lanes"], iterations=6, max_attempts=50))
    faults = {"lane": 0.01, "learner": 0.01}
    world = FakeWorld(shape["seed"], shape["lanes"], shape["slots"], heavy, shape["learn"], faults)
    lives: Counter[int] = Counter()
    said: list[LaneEvent] = []
    tape = Tape()
    while not scheduler.stopped:
        event = world.next_event()
        if isinstance(event, LaneEvent):
            event = structs.replace(event, life=lives[event.lane])
            said.append(event)
        commands = scheduler.handle(event, world.now)
        tape.record(event, world.now, commands)
        for command in commands:
            if isinstance(command, e.StartLane):
                lives[command.lane] += 1
            world.perform(command)
        late = [x for x in said[-40:] if x.life is not None and x.life < lives[x.lane]]
        if echoes and late and rng.random() < 0.5 and not scheduler.stopped:
            assert scheduler.handle(rng.choice(late), world.now) == []
    return scheduler, tape


@settings(max_examples=60, deadline=None)
@given(worlds)
def test_what_an_earlier_life_of_a_lane_said_changes_nothing(shape: dict) -> None:
    _, plain = run_with_echoes(shape, echoes=False)
    _, echoed = run_with_echoes(shape, echoes=True)
    assert echoed.rows == plain.rows


def test_lives_begin_anew_with_each_session() -> None:
    s = Scheduler(plan(lanes=2))
    for session in range(3):
        s.handle(e.Opened(session), 0.0)
        assert [lane.life for lane in s.lanes] == [1, 1]
        s.handle(e.LaneLost(1, "killed", life=1), 1.0)
        s.handle(e.LaneLost(1, "killed", life=1), 1.0)
        assert [lane.life for lane in s.lanes] == [1, 2]
        assert s.lanes[1].losses == 1


@settings(max_examples=60, deadline=None)
@given(worlds, st.integers(1, 3))
def test_what_runs_is_held_by_its_lane_also_where_the_run_gives_up(shape: dict, attempts: int) -> None:
    """After every event, over runs that fail for a lane lost too often and are taken up again."""
    scheduler = Scheduler(plan(lanes=shape["lanes"], iterations=6, max_attempts=attempts))
    start, ends = 0.0, []
    for session in range(4):
        world = FakeWorld(
            shape["seed"] + session, shape["lanes"], shape["slots"], heavy, shape["learn"], {"lane": 0.08},
            start, session, scheduler.window.newest,
        )  # fmt: skip
        for _ in range(400):
            for command in scheduler.handle(world.next_event(), world.now):
                world.perform(command)
            running = {m for g in scheduler.ledger.live.values() for m in g.members if m.status is Status.RUNNING}
            assert running == {m for lane in scheduler.lanes for m in lane.held.values()}
            if scheduler.stopped:
                break
        ends.append(scheduler.stopped)
        start = world.now
        if scheduler.stopped and scheduler.stopped.outcome == "finished":
            break


# -- a world that stands still ---------------------------------------------------------------------------------


class Suspended(FakeWorld):
    """Stands still now and then, for longer than a lease; lanes and learner go on, all is heard afterwards at once."""

    def __init__(self, *args: object, says_so: bool, **changes: object) -> None:
        super().__init__(*args, **changes)  # type: ignore[arg-type]
        self.says_so = says_so
        self.chance = random.Random(self.rng.random())
        self.times = 0

    def next_event(self) -> e.Event:
        if self._sequence > 5 and self.chance.random() < 0.02:
            self.times += 1
            seconds = self.chance.uniform(100.0, 5000.0)
            self._now += seconds
            if self.says_so:
                return e.Suspended(seconds)
        return super().next_event()


def short(rng: random.Random) -> float:
    return min(40.0, heavy(rng))


def suspended_run(shape: dict, says_so: bool) -> tuple[e.Stop | None, Tape, int]:
    """Responses are short enough to be begun and heard of within a lease, however full the lane."""
    world = Suspended(
        shape["seed"], shape["lanes"], shape["slots"], length=short, learn=shape["learn"], says_so=says_so
    )
    tape = Tape()
    lease = {"lease_seconds": 80.0, "stall_seconds": 400.0, "iterations": 8, "max_attempts": 50}
    return drive(Scheduler(plan(lanes=shape["lanes"], **lease)), world, tape), tape, world.times


def restarts(tape: Tape) -> list[e.Command]:
    again = [c for c in tape.commands() if isinstance(c, e.Generate) and max(c.attempts) > 0]
    return again + [c for c in tape.commands() if isinstance(c, e.Abort) or (isinstance(c, e.StartLane) and c.reason)]


@settings(max_examples=100, deadline=None)
@given(worlds)
def test_while_the_world_stands_still_nobody_is_to_blame(shape: dict) -> None:
    stop, tape, _ = suspended_run(shape, says_so=True)
    assert stop is not None
    assert stop.outcome == "finished", stop.reason
    assert restarts(tape) == []


def test_a_world_that_hides_it_restarts_what_was_well() -> None:
    """The control: in these very worlds leases would have run out."""
    blamed = 0
    for seed in range(20):
        stop, tape, _ = suspended_run({"seed": seed, "lanes": 2, "slots": 6, "learn": 5.0}, says_so=False)
        assert stop is not None
        blamed += bool(restarts(tape)) or stop.outcome == "failed"
    assert blamed >= 15


def running(**changes: object) -> tuple[Scheduler, list[int]]:
    s = Scheduler(plan(lease_seconds=60.0, stall_seconds=180.0, evaluate_every=0, **changes))
    s.handle(e.Opened(0), 0.0)
    s.handle(e.LaneReady(0, 64), 1.0)
    s.handle(e.LearnerReady(0), 1.0)
    sent = [c for c in s.handle(e.VersionLoaded(0, 0), 2.0) if isinstance(c, e.Generate)]
    return s, [i for c in sent for i in c.trajectory_ids]


def test_a_main_process_that_was_stopped_five_times_blames_nobody() -> None:
    s, ids = running()
    s.handle(e.Progress(0, tuple(ids), (7,) * len(ids), len(ids), 7 * len(ids)), 9.0)
    for stop, trajectory_id in enumerate(ids[:5]):
        now = 110.0 + 100.0 * stop
        assert s.handle(e.Suspended(99.0), now) == []
        commands = s.handle(e.Finished(trajectory_id, 0, 0, 0, 0, 5, "stop", now - 90, now - 80), now)
        assert commands == [e.Score(trajectory_id, 0, trajectory_id // 2, trajectory_id // 2)]
    assert s.stopped is None


@pytest.mark.parametrize("gap", [0.0, 100.0, 1e6])
def test_a_lease_runs_on_after_it(gap: float) -> None:
    """Standing still gives nobody more time than there was: a silent lane is lost a lease after its last word."""
    s, _ = running()
    s.handle(e.Tick(), 30.0)
    s.handle(e.Suspended(gap), 30.0 + gap)
    assert not any(isinstance(c, e.StartLane) for t in range(31, 61) for c in s.handle(e.Tick(), t + gap))
    assert any(isinstance(c, e.StartLane) for t in range(61, 67) for c in s.handle(e.Tick(), t + gap))


# -- marks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marked", [True, False])
def test_marks_are_progress(marked: bool) -> None:
    """512 held-out prompts of a reward that takes 0.2 s: more than `stall_seconds` with nothing but idle heartbeats."""
    s = Scheduler(
        plan(
            iterations=1, group_size=1, batch_size=1, bound=0, lease_seconds=60.0, stall_seconds=180.0, evaluate_every=0
        )
    )
    story = [
        e.Opened(0), e.LaneReady(0, 4), e.LearnerReady(0), e.VersionLoaded(0, 0), e.Evaluated(0, 8, 0.5, 0.5),
        e.Finished(0, 0, 0, 0, 0, 5, "stop", 0.0, 1.0), e.Scored(0, 0, 1.0), e.Trained(1, "", EMPTY_REPORT, 0.0, 1.0),
        e.VersionLoaded(0, 1),
    ]  # fmt: skip
    for event in story:
        s.handle(event, 1.0)
    for done in range(5, 1024, 5):
        now = 1.0 + 0.2 * done
        s.handle(e.Progress(0, (), (), 0, 1000), now)
        if marked:
            assert s.handle(e.Marked(1, done, 1024), now) == []
    if marked:
        assert s.handle(e.Evaluated(1, 512, 0.5, 0.5), 210.0) == [e.Stop("finished", "1 iterations done")]
    else:
        assert s.stopped is not None
        assert "the evaluation of version 1 does not end" in s.stopped.reason


def test_marks_of_no_evaluation_under_way_are_no_progress() -> None:
    s, _ = running()
    s.handle(e.Evaluated(0, 8, 0.5, 0.5), 3.0)
    for now in range(4, 300, 4):
        s.handle(e.Marked(0, 1, 16), float(now))
    assert s.progress_at == 3.0


# -- long steps ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iteration", [0, 7, None])
def test_passes_of_the_step_under_way_are_progress(iteration: int | None) -> None:
    """A step of 400 s where a run may stand still for 180: the learner says that it goes on, and of which iteration."""
    s = Scheduler(
        plan(
            iterations=1, group_size=1, batch_size=1, bound=0, lease_seconds=60.0, stall_seconds=180.0, evaluate_every=0
        )
    )
    story = [
        e.Opened(0), e.LaneReady(0, 4), e.LearnerReady(0), e.VersionLoaded(0, 0), e.Evaluated(0, 8, 0.5, 0.5),
        e.Finished(0, 0, 0, 0, 0, 5, "stop", 0.0, 1.0), e.Scored(0, 0, 1.0),
    ]  # fmt: skip
    done = [command for event in story for command in s.handle(event, 1.0)]
    assert any(isinstance(command, e.Train) for command in done)
    for now in range(5, 400, 5):
        s.handle(e.Progress(0, (), (), 0, 5), float(now))
        if iteration is not None:
            s.handle(e.Learning(iteration, now), float(now))
    if iteration == 0:
        assert s.stopped is None
        s.handle(e.Trained(1, "", EMPTY_REPORT, 1.0, 400.0), 400.0)
        assert s.window.newest == 1
    else:
        assert s.stopped is not None
        assert "the learner does not answer for iteration 0" in s.stopped.reason
