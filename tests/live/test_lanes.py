"""Lanes that share a process: whoever hangs or dies, the process is replaced once and nobody pays for another."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest

from offbeat import events as e
from offbeat.backends import messages as m
from offbeat.backends.local import Name
from offbeat.flow.scheduler import Scheduler
from offbeat.live.lanes import LaneDesk
from tests.flow.conftest import plan


class Processes:
    """Stands in for LocalBackend: what was started and sent."""

    def __init__(self) -> None:
        self.workers: dict[Name, int] = {}
        self.starts = 0
        self.sent: list[Any] = []

    def start(self, name: Name, hello: Any) -> None:
        self.starts += 1
        self.workers[name] = self.starts
        self.sent.clear()

    def send(self, name: Name, message: Any) -> None:
        self.sent.append(message)

    def answers(self) -> list[Any]:
        said: list[Any] = []
        for message in self.sent:
            if isinstance(message, m.OpenLane):
                said.append(m.LaneUp(message.lane, 8))
            elif isinstance(message, m.LoadWeights):
                said.append(m.WeightsLoaded(message.lane, message.version, ""))
        self.sent.clear()
        return said


class Run:
    """The real scheduler and lane desk over one process with all lanes; a Tick each second where nobody speaks."""

    def __init__(self, directory: Path, lanes: int, **changes: object) -> None:
        self.processes = Processes()
        self.desk = LaneDesk(self.processes, directory, lanes, {}, 0.0)  # type: ignore[arg-type]
        sizes = {"batch_size": 8 * lanes, "outstanding_limit": 8 * lanes, "evaluate_every": 0}
        self.scheduler = Scheduler(plan(lanes=lanes, lease_seconds=60.0, stall_seconds=1e9, **sizes, **changes))
        self.pending: deque[e.Event] = deque([e.Opened(0)])
        self.now = 0.0
        self.hangs = False

    def step(self) -> None:
        if not self.pending and not self.hangs:
            self.pending += [self.desk.heard(message) for message in self.processes.answers()]
        if not self.pending:
            self.now += 1.0
            self.pending.append(e.Tick())
        starts = self.processes.starts
        for command in self.scheduler.handle(self.pending.popleft(), self.now):
            if isinstance(command, e.StartLane):
                self.pending += self.desk.start(command.lane)
            elif isinstance(command, e.StartLearner):
                self.pending.append(e.LearnerReady(command.version))
            elif isinstance(command, e.LoadVersion):
                self.desk.tell(m.LoadWeights(command.lane, command.version, ""))
        self.hangs = self.hangs and self.processes.starts == starts

    def until(self, now: float) -> None:
        while self.now < now and not self.scheduler.stopped:
            self.step()

    def failures(self) -> list[int]:
        return [member.failures for group in self.scheduler.ledger.live.values() for member in group.members]


@pytest.mark.parametrize("lanes", [1, 2, 5, 8])
def test_a_process_that_hangs_is_replaced_once(tmp_path: Path, lanes: int) -> None:
    """All its lanes lose their leases in one event; each is started, none is lost again to the start of another."""
    run = Run(tmp_path, lanes)
    run.until(5.0)
    assert sum(len(lane.held) for lane in run.scheduler.lanes) == 8 * lanes
    run.hangs = True
    run.until(100.0)
    assert run.scheduler.stopped is None
    assert run.processes.starts == 2
    assert [lane.losses for lane in run.scheduler.lanes] == [1] * lanes
    assert set(run.failures()) == {1}
    assert sum(len(lane.held) for lane in run.scheduler.lanes) == 8 * lanes, "all runs again"


@pytest.mark.parametrize("lanes", [2, 5])
def test_a_process_that_dies_is_replaced_once(tmp_path: Path, lanes: int) -> None:
    run = Run(tmp_path, lanes)
    run.until(5.0)
    name = next(iter(run.processes.workers))
    del run.processes.workers[name]
    run.pending += run.desk.lost(name, "killed")
    run.until(30.0)
    assert run.processes.starts == 2
    assert [lane.losses for lane in run.scheduler.lanes] == [1] * lanes


def test_siblings_are_not_to_blame_for_one_lane(tmp_path: Path) -> None:
    """Lane 0 is lost as often as may be: its siblings lose their work each time, and neither a life nor an attempt."""
    run = Run(tmp_path, 4, max_attempts=4)
    for losses in range(1, 5):
        run.until(run.now + 5)
        run.pending.append(e.LaneLost(0, "lane 0 alone"))
        run.until(run.now + 5)
        assert [lane.losses for lane in run.scheduler.lanes] == [losses, 0, 0, 0]
    assert run.processes.starts == 5
    assert run.scheduler.stopped is None or "quarantined" in run.scheduler.stopped.reason
    assert sorted(set(run.failures())) in ([0], [0, 4])
    assert all(lane.held for lane in run.scheduler.lanes)


def test_what_an_earlier_life_said_names_it(tmp_path: Path) -> None:
    processes = Processes()
    desk = LaneDesk(processes, tmp_path, 2, {}, 0.0)  # type: ignore[arg-type]
    assert desk.start(0) == desk.start(1) == []
    assert desk.heard(m.LaneUp(1, 8)) == e.LaneReady(1, 8, life=1)
    assert desk.start(0) == [e.LaneLost(1, "its process was replaced, for lane 0 was", life=1, for_lane=0)]
    assert desk.start(1) == []
    assert desk.heard(m.WeightsLoaded(1, 3, "")) == e.VersionLoaded(1, 3, life=2)
    assert desk.heard(m.Beat(1, (4,), (5,), 1, 5, (), 5)) == e.Progress(1, (4,), (5,), 1, 5, (), 5, life=2)
