"""The twin law: a recorded run again, with its measured durations as service times, gives the same commands in order.

An event is an answer to a command; its service time is measured from when the command was given. The replay does not
read the recorded order: it performs the commands that the scheduler gives *now*, lets each be answered after its own
measured duration, and so would drift apart if anything but commands and durations moved a run. Times are exact
fractions. What nobody asked for (heartbeats, ticks, failures, signals) keeps its time of day. Of answers that arrive at
one moment, the recorded one comes first.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import NamedTuple

from offbeat import events as e
from offbeat.errors import InvariantError
from offbeat.flow.plan import Plan
from offbeat.flow.scheduler import Scheduler
from offbeat.loop import run

Row = tuple[float, e.Event, Sequence[e.Command]]
"""When an event was handled, the event, the commands it led to."""
Key = tuple[str | int, ...]


class Replayed(NamedTuple):
    """`differs` is the place of the first event whose time, kind or commands are not those recorded; None: all are."""

    events: int
    commands: int
    differs: int | None


def asked(command: e.Command) -> Iterator[Key]:
    """The questions that a command puts; each is answered by one event, or never."""
    match command:
        case e.StartLane():
            yield "lane", command.lane
        case e.StartLearner():
            yield ("learner",)
        case e.LoadVersion():
            yield "load", command.lane, command.version
        case e.Generate():
            for trajectory_id, attempt in zip(command.trajectory_ids, command.attempts, strict=True):
                yield "sample", trajectory_id, attempt
            yield "prompt", command.group_id
        case e.Move():
            yield "move", command.lane
        case e.Score():
            yield "score", command.trajectory_id, command.attempt
        case e.Train():
            yield "train", command.iteration
        case e.Evaluate():
            yield "evaluate", command.version
        case _:
            pass


def answered(event: e.Event) -> Key | None:
    """The question that an event answers; None for what nobody asked for."""
    match event:
        case e.LaneReady():
            return "lane", event.lane
        case e.LearnerReady():
            return ("learner",)
        case e.VersionLoaded():
            return "load", event.lane, event.version
        case e.Finished() | e.GenerationFailed():
            return "sample", event.trajectory_id, event.attempt
        case e.PromptRejected():
            return "prompt", event.group_id
        case e.Departed():
            return "move", event.lane
        case e.Scored() | e.ScoreFailed():
            return "score", event.trajectory_id, event.attempt
        case e.Trained():
            return "train", event.version - 1
        case e.Evaluated() | e.EvaluationFailed():
            return "evaluate", event.version
        case _:
            return None


class Answer(NamedTuple):
    """A measured service: how long after the question which event came, and its place in the log."""

    after: Fraction
    place: int
    event: e.Event


class _Asking:
    """A question at the moment it was put, and what came of it."""

    __slots__ = ("answer", "at")

    def __init__(self, at: Fraction) -> None:
        self.at = at
        self.answer: Answer | None = None


def measure(rows: Iterable[Row]) -> tuple[dict[Key, deque[Answer | None]], list[Answer]]:
    """The services of a recorded run by question, in the order asked, and what nobody asked for by time of day.

    None is the service of a question that was never answered: its process was lost, or it was put again. Raises
    InvariantError for an answer without a question: then events would not follow from commands, and the law would mean
    nothing.
    """
    askings: dict[Key, list[_Asking]] = defaultdict(list)
    unasked: list[Answer] = []
    for place, (now, event, commands) in enumerate(rows):
        at = Fraction(now)
        key = answered(event)
        if key is None:
            unasked.append(Answer(at, place, event))
        else:
            waiting = [asking for asking in askings[key] if asking.answer is None]
            if not waiting:
                raise InvariantError(f"event {place} ({type(event).__name__}) answers nothing that was asked before it")
            asking = waiting[0 if key[0] == "move" else -1]  # lanes give up in order; else what was put last counts
            asking.answer = Answer(at - asking.at, place, event)
        for command in commands:
            for question in asked(command):
                askings[question].append(_Asking(at))
    return {key: deque(asking.answer for asking in found) for key, found in askings.items()}, unasked


class ReplayWorld:
    """World (ports.World) that answers each command as a recorded run did, so long after it."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.services, unasked = measure(rows)
        self._heap = [(answer.after, answer.place, answer.event) for answer in unasked]
        heapq.heapify(self._heap)
        self._now = Fraction(0)

    @property
    def now(self) -> float:
        return float(self._now)

    def next_event(self) -> e.Event:
        """Raises InvariantError where nothing more was recorded."""
        if not self._heap:
            raise InvariantError(f"nothing was recorded after {self.now} s")
        self._now, _, event = heapq.heappop(self._heap)
        return event

    def perform(self, command: e.Command) -> None:
        for question in asked(command):
            answers = self.services.get(question)
            if answers:
                answer = answers.popleft()
                if answer is None:
                    continue
                heapq.heappush(self._heap, (self._now + answer.after, answer.place, answer.event))


class _Comparison:
    """A journal (ports.Journal) that checks what it is given against what was recorded."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.events = self.commands = 0
        self.differs: int | None = None

    def record(self, event: e.Event, now: float, commands: Sequence[e.Command]) -> None:
        place = self.events
        if self.differs is None:
            recorded = self.rows[place] if place < len(self.rows) else None
            if recorded is None or (now, event, list(commands)) != (recorded[0], recorded[1], list(recorded[2])):
                self.differs = place
        self.events += 1
        self.commands += len(commands)


class _Enough(Exception):
    """All that was recorded has happened again, or the runs have parted."""


def replay(rows: Sequence[Row], plan: Plan) -> Replayed:
    """Run the scheduler of `plan` against the durations of a recorded run, and compare event by event."""
    journal = _Comparison(rows)

    def enough(event: e.Event, now: float, commands: Sequence[e.Command]) -> None:
        if journal.differs is not None or journal.events >= len(rows):
            raise _Enough

    if rows:
        with suppress(_Enough):
            run(ReplayWorld(rows), Scheduler(plan), journal, [enough])
    return Replayed(journal.events, journal.commands, journal.differs)
