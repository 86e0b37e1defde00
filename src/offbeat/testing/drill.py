"""A fault drill: blows at a real run at chosen and random moments, and an audit after each.

*Drill law*: whatever is killed, whenever, the run goes on or can be resumed, and the audit of its log finds nothing
lost, nothing consumed twice, no breach of C1 or C3 that its schedule promises to keep. So it is after a freeze longer
than a lease, and where the newest version is spoilt.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import psutil

from offbeat import events as e
from offbeat.report.read import read_run
from offbeat.testing.subject import PATIENCE, Moment, Subject, Target

TARGETS: tuple[Target, ...] = ("main", "rollout", "learner", "scorer")
ALIVE = """SELECT 1 FROM events WHERE seq > ? AND (kind = 'Finished'
    OR (kind = 'Progress' AND json_extract(body, '$.decoded') > 0)) LIMIT 1"""


class Blow(NamedTuple):
    """`target` is killed at `moment`, and `then`, if any, as soon as the first is replaced, or at once where it is
    another."""

    target: Target
    moment: Moment
    then: Target | None = None

    def __str__(self) -> str:
        return f"{self.target} at {self.moment}" + (f", then {self.then}" if self.then else "")

    @property
    def kills(self) -> int:
        return 1 + (self.then is not None)


def blows(rng: random.Random, moves: bool) -> Iterator[Blow]:
    """Blows without end: every target and moment, a third of them double. `moves`: do responses change lanes?"""
    moments: list[Moment] = ["any", "any", "checkpoint", "publish", "startup", *(["migration"] * 2 if moves else [])]  # type: ignore[list-item]
    while True:
        for target in rng.sample(TARGETS, len(TARGETS)):
            then = rng.choice(TARGETS) if rng.random() < 1 / 3 else None
            yield Blow(target, rng.choice(moments), then)


@dataclass
class Drill:
    """What became of the blows so far. Seconds: of the wall for resumes, of run time for lanes."""

    kills: dict[str, int] = field(default_factory=dict)
    moments: dict[str, int] = field(default_factory=dict)
    missed_moments: int = 0
    audits: int = 0
    freezes: int = 0
    rebuilt: int = 0
    resume_seconds: list[float] = field(default_factory=list)
    ready_seconds: list[float] = field(default_factory=list)
    lane_seconds: list[float] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.kills.values())

    def strike(self, subject: Subject, blow: Blow, rng: random.Random) -> None:
        """One blow, then life again, a version more, and a clean audit."""
        if blow.moment == "startup":
            self._kill(subject, "main", rng)
            subject.resume()
            time.sleep(rng.uniform(0.1, 4.0))
        came = subject.wait_for_moment(blow.moment, rng)
        self.missed_moments += not came
        self.moments[blow.moment] = self.moments.get(blow.moment, 0) + came
        seq = subject.seq
        self._kill(subject, blow.target, rng)
        if blow.then is not None:
            if subject.dead:
                subject.resume()
                time.sleep(rng.uniform(0.0, 4.0))
            elif blow.then == blow.target:
                time.sleep(rng.uniform(0.0, 2.0))
            self._kill(subject, blow.then, rng)
        if "rollout" in (blow.target, blow.then) and "main" not in (blow.target, blow.then):
            lost = "SELECT max(seq) FROM events WHERE kind = 'LaneLost' AND seq > ?"
            subject.wait_for(lambda: subject.query(lost, seq))
            subject.wait_for(lambda: subject.query(ALIVE, subject.query(lost, seq)))
        self._live_again(subject)
        self._audited(subject)

    def freeze_main(self, subject: Subject, seconds: float) -> None:
        """Longer than every lease: nobody is blamed for it afterwards."""
        assert subject.process is not None
        main, seq = psutil.Process(subject.process.pid), subject.seq
        main.suspend()
        time.sleep(seconds)
        main.resume()
        self._live_again(subject)
        losses = subject.query("SELECT count(*) FROM events WHERE seq > ? AND kind IN ('LaneLost', 'LearnerLost')", seq)
        assert losses == 0, f"{subject.directory}: {losses} blamed for a frozen main process"
        self._audited(subject, freezes=1)

    def freeze_lane(self, subject: Subject) -> None:
        """Until its leases end and it is replaced; it is gone before it could say anything later."""
        [lane, *_] = subject.workers("rollout")
        lane.suspend()
        subject.wait_for(lambda: not lane.is_running())
        self._live_again(subject)
        self._audited(subject, freezes=1)

    def spoil_newest(self, subject: Subject, rng: random.Random) -> None:
        """Kill the run, damage a file of its newest version, resume: made anew from the version before, and said so."""
        self._kill(subject, "main", rng)
        version, before = subject.version, subject.rebuilt
        directory = subject.directory / "versions" / f"{version:06d}"
        file = directory / rng.choice(["model.safetensors", "optimizer.safetensors", "manifest.json"])
        content = bytearray(file.read_bytes())
        if rng.random() < 0.5:
            file.write_bytes(content[: len(content) // 2])
        else:
            content[-1] ^= 0xFF
            file.write_bytes(content)
        self._live_again(subject)
        assert subject.rebuilt == before + 1, f"{subject.directory}: {file.name} of version {version} was not missed"
        self._audited(subject, rebuilt=1)

    def _audited(self, subject: Subject, freezes: int = 0, rebuilt: int = 0) -> None:
        subject.audit()
        self.audits += 1
        self.freezes += freezes
        self.rebuilt += rebuilt

    def _kill(self, subject: Subject, target: Target, rng: random.Random) -> None:
        """A worker that is just being replaced is waited for."""
        deadline = time.monotonic() + PATIENCE
        while not subject.kill(target, rng):
            assert not subject.dead, f"{subject.directory}: ended before its {target} could be killed"
            assert time.monotonic() < deadline, f"{subject.directory}: no {target} to kill"
            time.sleep(0.02)
        self.kills[target] = self.kills.get(target, 0) + 1

    def _live_again(self, subject: Subject) -> None:
        if subject.dead:
            seq, began = subject.seq, time.monotonic()
            subject.resume()
            subject.wait_for(lambda: subject.query(ALIVE, seq))
            self.resume_seconds.append(time.monotonic() - began)
        before = subject.version
        subject.wait_for(lambda: subject.version > before)

    def read_recoveries(self, subject: Subject) -> None:
        """From the loss of a lane, as it was detected, until it could generate again (`ready_seconds`) and until it
        did: a lane that is up may wait for work."""
        lost: dict[int, float] = {}
        down: dict[int, float] = {}
        for record in read_run(subject.directory).records:
            for command in record.commands:
                if isinstance(command, e.StartLane) and command.reason:
                    lost[command.lane] = down[command.lane] = record.now
            match record.event:
                case e.Opened():
                    lost.clear()
                    down.clear()
                case e.VersionLoaded(lane=lane) if lane in down:
                    self.ready_seconds.append(record.now - down.pop(lane))
                case e.Progress(lane=lane, decoded=decoded) if decoded > 0 and lane in lost:
                    self.lane_seconds.append(record.now - lost.pop(lane))
                case e.Finished(lane=lane) if lane in lost:  # a response shorter than a heartbeat
                    self.lane_seconds.append(record.now - lost.pop(lane))
