"""Cases made by the real scheduler over the fake world, and reports that a test may bend."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from offbeat import events as e
from offbeat.diagnosis.case import Case, Place
from offbeat.diagnosis.explain import explain
from offbeat.diagnosis.finding import Finding
from offbeat.flow.plan import plan_from
from offbeat.flow.scheduler import Scheduler
from offbeat.records import StepReport
from offbeat.report.read import Record, Run
from offbeat.settings import Settings
from offbeat.testing.fake_world import FakeWorld
from tests.report.editable_run import small_settings, step_report

Bend = Callable[[int], dict[str, Any]]
USED = Place(in_use=True, silent_seconds=0.2, free_bytes=1 << 40)


def settings(**changes: object) -> Settings:
    """Sixty iterations of 4 groups of 4 on two lanes."""
    given = {"learner__iterations": 60, "run__evaluate_every": 0, "run__lease_seconds": 300, "run__stall_seconds": 9000}
    return small_settings(**given | changes)


class BeatingWorld(FakeWorld):
    """Two lanes of 10 slots that beat every five seconds, idle or not. Responses of some 30 tokens keep a learner of
    20 s a step fed, and no more than that."""

    def __init__(self, **options: Any) -> None:
        super().__init__(0, 2, 10, **{"length": lambda rng: rng.uniform(20, 40), "learn": 20.0} | options)
        for lane in range(2):
            self._after(5.0, partial(self._say_beat, lane))

    def _say_beat(self, index: int) -> e.Event | None:
        self._after(5.0, partial(self._say_beat, index))
        lane = self.lanes[index]
        if not lane.loaded:
            return None
        ids = tuple(lane.running)
        busy = len(ids) - len(lane.parked)
        tokens = (0,) * len(ids)
        return e.Progress(index, ids, tokens, busy, lane.decoded, tuple(lane.parked), lane.cached(self.now))


class Scorer(BeatingWorld):
    """Gives rewards one after the other, each after `seconds`, and fails those of `failing` groups."""

    def __init__(self, seconds: float, failing: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.seconds, self.failing, self.free_at = seconds, failing, 0.0

    def _score(self, command: e.Score) -> None:
        self.free_at = max(self.free_at, self.now) + self.seconds
        key = command.trajectory_id, command.attempt
        fails = command.group_id in self.failing
        self._push(self.free_at, lambda: e.ScoreFailed(*key, "ran out of time (5 s)") if fails else e.Scored(*key, 1.0))


def world(**options: Any) -> FakeWorld:
    return BeatingWorld(**options)


def good_report(iteration: int, rng: random.Random, chosen: Settings) -> StepReport:
    """Learning as it should be: the reward rises, nothing is skipped."""
    skill = 0.2 + 0.6 * min(1.0, iteration / 60)
    report = step_report(iteration, 480, [float(rng.random() < skill) for _ in range(16)], chosen, rng)
    return msgspec.structs.replace(report, skipped_updates=0, consecutive_skips=0, train_seconds=20.0)


def drive(
    acted: FakeWorld, chosen: Settings, bend: Bend = lambda iteration: {}, most: int = 100_000
) -> list[tuple[e.Event, float, tuple[e.Command, ...]]]:
    """What the run log of a run in this world would hold, up to `most` events."""
    scheduler, rng = Scheduler(plan_from(chosen)), random.Random(0)
    rows = []
    for _ in range(most):
        if scheduler.stopped:
            break
        event = acted.next_event()
        if isinstance(event, e.Trained):
            report = good_report(event.version - 1, rng, chosen)
            event = msgspec.structs.replace(event, report=msgspec.structs.replace(report, **bend(event.version - 1)))
        commands = scheduler.handle(event, acted.now)
        rows.append((event, acted.now, tuple(commands)))
        for command in commands:
            acted.perform(command)
    return rows


def case(rows: list[tuple[e.Event, float, Any]], chosen: Settings | None = None, place: Place = USED) -> Case:
    records = tuple(Record(i, now, event, tuple(deeds)) for i, (event, now, deeds) in enumerate(rows, start=1))
    return Case(Run(Path("out/run"), {}, chosen or settings(), records, {}, {}), place)


def run_case(acted: FakeWorld | None = None, bend: Bend = lambda iteration: {}, **changes: object) -> Case:
    """A whole run in this world."""
    chosen = settings(**changes)
    return case(drive(acted or world(), chosen, bend), chosen)


def found(examined: Case) -> dict[str, Finding]:
    """What `offbeat explain` finds, by name; each of it said in full."""
    findings = explain(examined).findings
    for finding in findings:
        assert finding.sentence.endswith("."), finding.sentence
        assert finding.remedy, finding.name
        assert finding.evidence or finding.name == "interrupted", finding.name
    assert len({finding.name for finding in findings}) == len(findings) or "lane-lost" in {f.name for f in findings}
    return {finding.name: finding for finding in findings}
