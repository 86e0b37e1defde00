"""The twin law, on recorded runs of the fake world and of the simulator, with the controls that could break it."""

from __future__ import annotations

import pytest

from offbeat import events as e
from offbeat.flow.scheduler import Scheduler
from offbeat.sim.replay import measure, replay
from offbeat.sim.simulate import simulate
from offbeat.testing.fake_world import FakeWorld
from tests.flow.conftest import Tape, drive, heavy, plan
from tests.sim.clusters import cluster


def recorded(schedule: str, **changes: object):  # type: ignore[no-untyped-def]
    about = plan(schedule=schedule, lanes=3, bound={"sync": 0, "one-step-off": 1}.get(schedule, 2), **changes)
    faults = {"lane": 0.004, "learner": 0.002, "score": 0.01}
    world = FakeWorld(seed=5, lanes=3, slots=4, length=heavy, faults=faults)
    tape = Tape()
    drive(Scheduler(about), world, tape)
    return about, [(now, event, commands) for event, now, commands in tape.rows]


@pytest.mark.parametrize("schedule", ["multi-version", "sync", "one-step-off", "partial", "in-flight"])
def test_measured_durations_give_the_same_commands_in_the_same_order(schedule: str) -> None:
    about, rows = recorded(schedule)
    done = replay(rows, about)
    assert done.differs is None
    assert done.events == len(rows) > 100
    assert done.commands == sum(len(commands) for _, _, commands in rows)


def test_with_responses_that_move() -> None:
    about, rows = recorded("multi-version", live_versions=1, rebalance_seconds=5.0)
    assert any(isinstance(event, e.Departed) for _, event, _ in rows)
    assert replay(rows, about).differs is None


def test_a_simulated_run_has_its_twin() -> None:
    rows = []
    about = cluster(tools={"turns": 3, "seconds": 4.0}, scoring={"seconds": 0.5})
    simulate(about, "multi-version", observers=[lambda event, now, commands: rows.append((now, event, commands))])
    assert replay(rows, about.plan("multi-version")).differs is None


def test_the_law_can_fail() -> None:
    """Another duration, or another scheduler, and the runs part."""
    about, rows = recorded("multi-version")
    place = next(i for i, (_, event, _) in enumerate(rows) if isinstance(event, e.Trained))
    slower = [(now + 7.0 if i == place else now, event, commands) for i, (now, event, commands) in enumerate(rows)]
    assert replay(slower, about).differs is not None
    other, _ = recorded("multi-version", outstanding_limit=16)
    assert replay(rows, other).differs is not None


def test_every_event_of_a_run_answers_a_command() -> None:
    _, rows = recorded("multi-version")
    services, unasked = measure(rows)
    assert {type(answer.event) for answer in unasked} <= {e.Opened, e.Progress, e.Tick, e.LaneLost, e.LearnerLost}
    assert all(answer.after >= 0 for answers in services.values() for answer in answers if answer)
