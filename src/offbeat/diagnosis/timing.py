"""What the learner and the reward did with the time of the newest iterations, from the order of events alone.

The learner's time is divided among: `training`; `bound` (a batch is scored, the start rule holds it back); `reward` (a
batch is finished, its rewards are not there); `rollout` (no batch is finished); `down` (the learner is not up).
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from offbeat import events as e
from offbeat.report.heartbeats import heartbeats
from offbeat.report.read import Run

WINDOW = 32
"""Iterations looked at."""
FEWEST = 10
"""Iterations: of fewer, or of as little sampled as that, no rate or share is judged."""
FEWEST_SECONDS = 30.0
"""Of a shorter time no share is judged: one pause would decide it. A whole window is enough, however fast."""
FEWEST_BEATS = 20
"""The same of heartbeats."""


@dataclass(frozen=True)
class Timing:
    """`shares` of the learner's time over the newest `iterations` iterations, empty while that is too little to judge.

    `busy_share` is the mean share of slots in use in that time, `parked_share` the share of heartbeats in which a
    response waited for room; None where too little was said. `score_seconds` are the newest waits for a reward.
    `training_since` is the run time at which the batch in training was handed out, or the learner last said that it
    goes on with it; None while there is none.
    """

    iterations: int = 0
    seconds: float = 0.0
    first: int = 0
    shares: dict[str, float] = field(default_factory=dict)
    busy_share: float | None = None
    parked_share: float | None = None
    score_seconds: tuple[float, ...] = ()
    training_since: float | None = None


class _Book:
    """Where every trajectory of the groups at hand is, and what the learner does."""

    def __init__(self, group_size: int, per_batch: int) -> None:
        self.size, self.per_batch = group_size, per_batch
        self.attempt: dict[int, int] = {}
        self.finished: dict[int, dict[int, float]] = defaultdict(dict)
        self.scored: dict[int, set[int]] = defaultdict(set)
        self.up = False
        self.training_since: float | None = None
        self.waits: deque[float] = deque(maxlen=512)

    def doing(self) -> str:
        if not self.up:
            return "down"
        if self.training_since is not None:
            return "training"
        if sum(len(members) == self.size for members in self.scored.values()) >= self.per_batch:
            return "bound"
        if sum(len(members) == self.size for members in self.finished.values()) >= self.per_batch:
            return "reward"
        return "rollout"

    def event(self, event: e.Event, now: float) -> None:
        match event:
            case e.Opened():
                self.up, self.training_since = False, None
            case e.LearnerReady():
                self.up = True
            case e.LearnerLost():
                self.up, self.training_since = False, None
            case e.Trained():
                self.training_since = None
            case e.Learning():
                self.training_since = now
            case e.Suspended() if self.training_since is not None:
                self.training_since += event.seconds
            case e.Finished() if self.attempt.get(event.trajectory_id) == event.attempt:
                self.finished[event.trajectory_id // self.size][event.trajectory_id] = now
            case e.Scored() if self.attempt.get(event.trajectory_id) == event.attempt:
                group = event.trajectory_id // self.size
                if event.trajectory_id in self.finished[group]:
                    self.waits.append(now - self.finished[group][event.trajectory_id])
                    self.scored[group].add(event.trajectory_id)

    def command(self, command: e.Command, now: float) -> None:
        match command:
            case e.Generate():
                self.attempt.update(zip(command.trajectory_ids, command.attempts, strict=True))
                for trajectory_id in command.trajectory_ids:
                    self.finished[command.group_id].pop(trajectory_id, None)
                    self.scored[command.group_id].discard(trajectory_id)
            case e.Train():
                self.training_since = now
                for group_id in command.group_ids:
                    self._forget(group_id)
            case e.Quarantine() | e.Evict():
                self._forget(command.group_id)

    def _forget(self, group_id: int) -> None:
        self.finished.pop(group_id, None)
        self.scored.pop(group_id, None)
        for trajectory_id in range(group_id * self.size, (group_id + 1) * self.size):
            self.attempt.pop(trajectory_id, None)


def timing_of(run: Run) -> Timing:
    """Follow the log once; time between sessions counts for nobody."""
    schedule = run.settings.schedule
    book = _Book(run.group_size, schedule.train_batch_size // run.group_size)
    published = [(r.now, r.event.version) for r in run.records if isinstance(r.event, e.Trained)]
    window = published[-WINDOW - 1 :] if len(published) > FEWEST else []
    since, until = (window[0][0], window[-1][0]) if window else (0.0, 0.0)
    enough = until - since >= FEWEST_SECONDS or len(window) > WINDOW
    spent: dict[str, float] = defaultdict(float)
    beats = parked = 0
    last, doing = 0.0, "down"
    for record in run.records:
        if since < record.now <= until:
            spent[doing] += record.now - max(last, since)
        if record.now > since and isinstance(record.event, e.Progress):
            beats, parked = beats + 1, parked + bool(record.event.parked)
        book.event(record.event, record.now)
        for command in record.commands:
            book.command(command, record.now)
        last, doing = record.now, book.doing()
    total = sum(spent.values())
    return Timing(
        iterations=max(0, len(window) - 1),
        seconds=total,
        first=window[0][1] if window else 0,
        shares={what: spent[what] / total for what in spent} if enough and total > 0 else {},
        busy_share=_busy_share(run, since, until) if enough else None,
        parked_share=parked / beats if enough and beats >= FEWEST_BEATS else None,
        score_seconds=tuple(book.waits),
        training_since=book.training_since,
    )


def _busy_share(run: Run, since: float, until: float) -> float | None:
    beats = heartbeats(run)
    inside = (beats.times > since) & (beats.times <= until)
    slots = run.settings.rollout.slots * run.settings.rollout.lanes
    return float(beats.busy[inside].mean()) / slots if inside.sum() >= FEWEST_BEATS else None
