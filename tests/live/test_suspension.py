"""A main process that stood still says so first; over processes and a clock that are stood in for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offbeat import events as e
from offbeat.backends import messages as m
from offbeat.backends.local import Name
from offbeat.live import world as live_world
from offbeat.live.runlog import RunLog
from offbeat.live.world import LiveWorld
from offbeat.records import Batch, Group, Prompt
from offbeat.settings import Settings

ROLLOUT = Name("rollout")
LEARNER = Name("learner")


class Clock:
    """Monotonic time by hand; `stands` are seconds lost in the next poll, as when this process is stopped in it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.stands = 0.0

    def monotonic(self) -> float:
        return self.now


class Processes:
    """Stands in for LocalBackend: says what lies in `said`, else lets the time pass that it was given."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.workers: dict[Name, object] = {}
        self.said: list[tuple[Name, Any]] = []
        self.sent: list[Any] = []

    def start(self, name: Name, hello: Any) -> None:
        self.workers[name] = hello

    def send(self, name: Name, message: Any) -> None:
        self.sent.append(message)

    def poll(self, seconds: float) -> list[tuple[Name, Any]]:
        self.clock.now += self.clock.stands + (0.0 if self.said else seconds)
        self.clock.stands = 0.0
        said, self.said = self.said, []
        return said


class Prompts:
    """Stands in for PromptBook: of what was it told that it may forget it?"""

    held_out: tuple[Prompt, ...] = ()

    def __init__(self) -> None:
        self.forgotten: list[int] = []

    def forget_before(self, prompt_id: int) -> None:
        self.forgotten.append(prompt_id)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(live_world, "time", clock)
    return clock


@pytest.fixture
def world(clock: Clock, tmp_path: Path) -> Iterator[LiveWorld]:
    log = RunLog.create(tmp_path / "run.sqlite", {})
    made: Any = LiveWorld
    yield made(tmp_path, Settings(), log, Processes(clock), Prompts(), None, session=0, start=70.0)
    log.close()


def beat(decoded: int) -> tuple[Name, m.Beat]:
    return ROLLOUT, m.Beat(0, (), (), 0, decoded, (), 0)


def test_a_quiet_world_ticks_and_never_says_that_it_stood_still(world: LiveWorld, clock: Clock) -> None:
    assert world.next_event() == e.Opened(0)
    assert [world.next_event() for _ in range(20)] == [e.Tick()] * 20
    assert world.now == pytest.approx(90.0)


@pytest.mark.parametrize("seconds", [3.0, 100.0])
def test_a_process_that_was_stopped_says_so_before_what_it_heard(
    world: LiveWorld, clock: Clock, seconds: float
) -> None:
    world.next_event()
    world.perform(e.StartLane(0))
    world.next_event()
    clock.stands = seconds
    world.backend.said = [beat(1), beat(2)]  # type: ignore[attr-defined]
    before = world.now
    first, second, third = (world.next_event() for _ in range(3))
    assert isinstance(first, e.Suspended)
    assert world.now - before - 1.0 == pytest.approx(first.seconds)
    assert [second, third] == [e.Progress(0, (), (), 0, n, (), 0, life=1) for n in (1, 2)]
    assert world.next_event() == e.Tick()


def test_time_lost_outside_the_poll_counts_as_well(world: LiveWorld, clock: Clock) -> None:
    """A disk or a command that blocks: nobody was listened to either."""
    world.next_event()
    clock.now += 30.0
    first = world.next_event()
    assert isinstance(first, e.Suspended)
    assert world.next_event() == e.Tick()


def test_a_slow_start_is_not_standing_still(world: LiveWorld, clock: Clock) -> None:
    clock.now += 500.0
    assert world.next_event() == e.Opened(0)
    assert world.next_event() == e.Tick()


def test_a_worker_that_fails_is_heard_of_once(world: LiveWorld, clock: Clock) -> None:
    """By its `Died`; the reason it gave before is no event."""
    world.next_event()
    world.perform(e.StartLane(0))
    world.backend.said = [(ROLLOUT, m.WorkerFailed("the model is damaged"))]  # type: ignore[attr-defined]
    assert world.next_event() == e.Tick()


def test_prompts_are_forgotten_by_their_own_ids(world: LiveWorld) -> None:
    """Where groups are evicted, prompt ids fall behind group ids."""
    groups = tuple(
        Group(40 + i, Prompt(prompt_id, "sums", "1+2=", "3"), (), ()) for i, prompt_id in enumerate((31, 29))
    )
    world.log.batch = lambda *command: Batch(3, groups)  # type: ignore[method-assign]
    world.perform(e.Train(3, (40, 41), ((0,), (0,))))
    assert world.prompts.forgotten == [29]  # type: ignore[attr-defined]


def test_a_learner_that_goes_on_with_a_long_step_says_so(world: LiveWorld) -> None:
    world.next_event()
    world.backend.said = [(LEARNER, m.StepGoesOn(3, 40))]  # type: ignore[attr-defined]
    assert world.next_event() == e.Learning(3, 40)


def test_a_freeze_that_hit_the_scorer_too_costs_no_reward(world: LiveWorld, clock: Clock) -> None:
    """Nobody could answer while everybody stood still: the call under way has its time again."""
    world.next_event()
    world.scoring.start()
    world.scoring.up(world._clock())
    world.scoring.ask(("trajectory", 1, 0), Prompt(0, "d", "q", "a"), "x")
    world.scoring.go_on(world._clock())
    assert world.scoring.deadline is not None
    clock.stands = 600.0
    assert isinstance(world.next_event(), e.Suspended)
    assert world.next_event() == e.Tick()
    left = world.scoring.deadline - world._clock()
    assert 0 < left <= world.settings.task.reward_seconds
    failed = [world.next_event() for _ in range(int(left) + 3)]
    assert e.ScoreFailed(1, 0, f"ran out of time ({world.settings.task.reward_seconds:g} s)") in failed
