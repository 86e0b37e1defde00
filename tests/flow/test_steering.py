"""The autopilot in the scheduler: levers reach batches and admission, every move is announced, and it is all a fold."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat import events as e
from offbeat.flow.plan import plan_from
from offbeat.flow.scheduler import Scheduler
from offbeat.flow.staleness import capacity
from offbeat.flow.steering import Steering
from offbeat.records import StepAlignment
from offbeat.settings import settings_from
from offbeat.testing.empty_report import EMPTY_REPORT
from offbeat.testing.fake_world import FakeWorld
from offbeat.theory.autopilot import AutopilotSettings

from .conftest import Tape, drive, heavy, plan

AUTOPILOT = AutopilotSettings(level=0.2, window=2, settle=2, patience=4, most_staleness=4, least_rate=0.25)


class Telling(FakeWorld):
    """Its learner finds a mismatch of so much times the level, until `calm_after`, and gradients of this cosine."""

    pressure, cosine, calm_after = 2.0, 0.0, math.inf

    def next_event(self) -> e.Event:
        event = super().next_event()
        if not isinstance(event, e.Trained):
            return event
        mismatch = 0.2 * self.pressure if event.version <= self.calm_after else 0.0
        alignment = StepAlignment(cosine=self.cosine)
        report = msgspec.structs.replace(EMPTY_REPORT, policy_lag_kl=mismatch**2 / 2, alignment=alignment)
        return msgspec.structs.replace(event, report=report)


def steers(tape: Tape) -> list[e.Steer]:
    return [command for command in tape.commands() if isinstance(command, e.Steer)]


def flown(iterations: int = 24, calm_after: float = math.inf, cosine: float = 0.0, seed: int = 0) -> Tape:
    scheduler = Scheduler(plan(bound=4, iterations=iterations, autopilot=AUTOPILOT, lanes=2))
    world = Telling(seed, 2, 6, length=heavy)
    world.calm_after, world.cosine = calm_after, cosine
    tape = Tape()
    stop = drive(scheduler, world, tape)
    assert stop is not None
    assert stop.outcome == "finished"
    return tape


def test_every_batch_goes_with_the_levers_as_last_announced() -> None:
    tape = flown(cosine=0.9, calm_after=12)
    stand = {"projection": 0.0, "learning rate": 1.0}
    seen = []
    for command in tape.commands():
        if isinstance(command, e.Steer):
            assert command.before == stand.get(command.lever, command.before)
            assert command.reason
            stand[command.lever] = command.after
        if isinstance(command, e.Train):
            assert (command.projection, command.rate) == (stand["projection"], stand["learning rate"])
            seen.append((command.projection, command.rate))
    assert len(set(seen)) >= 3, "levers moved and were let go"
    assert seen[0] == (0.0, 1.0)


def test_the_last_lever_is_the_bound_that_admission_keeps() -> None:
    """C3 is promised for the plan's bound and kept by the start rule; what starts is held to the lower one."""
    scheduler = Scheduler(plan(bound=4, iterations=40, autopilot=AUTOPILOT, lanes=2))
    world, tape, tight = Telling(3, 2, 12, length=heavy), Tape(), 0
    while scheduler.stopped is None:
        event = world.next_event()
        commands = scheduler.handle(event, world.now)
        tape.record(event, world.now, commands)
        window = scheduler.window
        if any(isinstance(c, e.Generate) and set(c.attempts) == {0} for c in commands) and window.bound < 4:
            tight += 1
            room = capacity(window.newest, window.iteration, window.bound, 8)
            assert window.outstanding(window.newest) <= room
        for command in commands:
            world.perform(command)
    assert tight > 5
    assert [steer.after for steer in steers(tape) if steer.lever == "staleness"] == [2.0, 1.0]
    assert max(tape.staleness()) <= 4


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 30))
def test_twin_law_holds_with_an_autopilot(seed: int, calm_after: int) -> None:
    """Folding the log again gives the same commands, so a resumed run has the levers it had."""
    tape = flown(seed=seed, calm_after=calm_after)
    again = Scheduler(plan(bound=4, iterations=24, autopilot=AUTOPILOT, lanes=2))
    for event, now, commands in tape.rows:
        restored = msgspec.json.decode(msgspec.json.encode(event), type=e.Event)
        assert again.handle(restored, now) == commands
    assert steers(tape)
    for a, b in pairwise(steers(tape)):
        assert b.version > a.version


def test_without_an_autopilot_nothing_moves() -> None:
    steering = Steering(None)
    trained = e.Trained(1, "", msgspec.structs.replace(EMPTY_REPORT, policy_lag_kl=9.0), 0.0, 1.0)
    assert [steering.saw(trained) for _ in range(40)] == [[]] * 40
    assert (steering.projection, steering.rate, steering.bounded(3)) == (0.0, 1.0, 3)


def test_an_iteration_that_was_left_out_says_nothing() -> None:
    steering = Steering(AUTOPILOT)
    report = msgspec.structs.replace(EMPTY_REPORT, policy_lag_kl=9.0, skipped_updates=1, gradient_norm=0.0)
    assert [steering.saw(e.Trained(v, "", report, 0.0, 1.0)) for v in range(1, 9)] == [[]] * 8
    seen = msgspec.structs.replace(report, skipped_updates=0)
    assert [bool(steering.saw(e.Trained(v, "", seen, 0.0, 1.0))) for v in (9, 10)] == [False, True]


@pytest.mark.parametrize(("name", "bound"), [("multi-version", 6), ("sync", 1), ("one-step-off", 1), ("partial", 1)])
def test_staleness_is_a_lever_where_the_schedule_keeps_a_bound(name: str, bound: int) -> None:
    given = settings_from({"schedule": {"name": name, "max_staleness": 6}, "learner": {"autopilot": True}})
    autopilot = plan_from(given).autopilot
    assert autopilot is not None
    assert autopilot.most_staleness == bound
    assert autopilot.level == pytest.approx(math.log(1.2))
    assert plan_from(settings_from({})).autopilot is None
