"""What happened to every trajectory, told from the log alone: dispatched, finished, scored, consumed or quarantined.

Written without the scheduler on purpose: slow, obvious, one pass. An attempt is *accepted* when its Finished
arrives while it is the latest dispatch and still runs; a batch is *consumed* when the Trained of its iteration is in
the log, with the groups of the last Train command before it. This file judges nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from offbeat import events as e
from offbeat.report.read import Record, Run


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One attempt at one trajectory, as a Generate command asked for it."""

    seq: int
    now: float
    lane: int
    version: int
    group_id: int
    prompt_id: int
    trajectory_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A Finished with its place in the log."""

    seq: int
    now: float
    event: e.Finished


@dataclass(frozen=True, slots=True)
class Decoding:
    """A stretch of one response in one slot: all of it, or what its lane decoded before it gave it up."""

    lane: int
    slot: int
    started: float
    ended: float
    version: int
    trajectory_id: int
    attempt: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Consumption:
    """A committed iteration: the Train command that counts and the Trained that committed it."""

    train_seq: int
    trained_seq: int
    now: float
    train: e.Train
    trained: e.Trained

    @property
    def iteration(self) -> int:
        return self.train.iteration


@dataclass
class Story:
    """Filled by `tell`, read-only afterwards. Keys: trajectory_id, (trajectory_id, attempt), group_id or
    iteration (`trains_of`).

    `scores` holds what came for the accepted attempt, in order; the first one counts. `repeated` are dispatches of
    a trajectory whose earlier attempt still ran or was accepted already. `continues` are (seq, version) by lane,
    `departures` what lanes gave up for others; `astray` says what was attached without having departed.
    """

    group_size: int
    dispatches: dict[tuple[int, int], list[Dispatch]] = field(default_factory=lambda: defaultdict(list))
    first_dispatch: dict[int, Dispatch] = field(default_factory=dict)
    finishes: list[Heard] = field(default_factory=list)
    accepted: dict[int, Heard] = field(default_factory=dict)
    scores: dict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    trains_of: dict[int, list[tuple[int, e.Train]]] = field(default_factory=lambda: defaultdict(list))
    publishes: list[tuple[int, float, e.Trained]] = field(default_factory=list)
    rebuilt: list[tuple[int, e.Rebuilt]] = field(default_factory=list)
    consumptions: list[Consumption] = field(default_factory=list)
    unexplained: list[tuple[int, e.Trained]] = field(default_factory=list)
    quarantines: list[tuple[int, float, e.Quarantine]] = field(default_factory=list)
    evictions: list[tuple[int, e.Evict]] = field(default_factory=list)
    steers: list[tuple[int, e.Steer]] = field(default_factory=list)
    departures: list[e.Departed] = field(default_factory=list)
    astray: list[str] = field(default_factory=list)
    evaluations: list[tuple[float, e.Evaluated]] = field(default_factory=list)
    sessions: list[tuple[int, float, e.Opened]] = field(default_factory=list)
    stops: list[tuple[int, e.Stop]] = field(default_factory=list)
    repeated: list[tuple[Dispatch, str]] = field(default_factory=list)
    continues: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    _running: dict[int, Dispatch] = field(default_factory=dict)
    _departed: e.Departed | None = None
    _lives: Counter[int] = field(default_factory=Counter)

    def members(self, group_id: int) -> range:
        """The trajectory ids of a group."""
        return range(group_id * self.group_size, (group_id + 1) * self.group_size)

    @property
    def consumed_groups(self) -> set[int]:
        return {group_id for batch in self.consumptions for group_id in batch.train.group_ids}

    @property
    def quarantined_groups(self) -> set[int]:
        return {command.group_id for _, _, command in self.quarantines}

    @property
    def evicted_groups(self) -> set[int]:
        return {command.group_id for _, command in self.evictions}

    @property
    def outcome(self) -> str:
        """`finished`, `interrupted`, `failed`; `running` while no Stop follows the newest Opened."""
        opened = self.sessions[-1][0] if self.sessions else -1
        stop = self.stops[-1] if self.stops else None
        return stop[1].outcome if stop and stop[0] >= opened else "running"

    def version_of(self, trajectory_id: int, asked: Dispatch) -> int:
        """The oldest version in a trajectory: that of its first token once it is accepted, else the one asked for."""
        heard = self.accepted.get(trajectory_id)
        return heard.event.version if heard and heard.event.attempt == asked.attempt else asked.version

    @property
    def digests(self) -> dict[int, str]:
        """SHA-256 of the weights of each version from 1 on, as the log announced it last."""
        published = {trained.version: trained.digest for _, _, trained in self.publishes}
        return published | {rebuilt.version: rebuilt.digest for _, rebuilt in self.rebuilt}

    @property
    def consumed(self) -> list[tuple[Consumption, Dispatch]]:
        """Every consumed trajectory that was asked for, in the order of consumption."""
        return [
            (batch, tries[-1])
            for batch in self.consumptions
            for group_id, attempts in zip(batch.train.group_ids, batch.train.attempts, strict=False)
            for key in zip(self.members(group_id), attempts, strict=False)
            if (tries := self.dispatches.get(key))
        ]

    @property
    def staleness(self) -> list[int]:
        """Staleness of every consumed trajectory, in the order of consumption."""
        return [batch.iteration - self.version_of(asked.trajectory_id, asked) for batch, asked in self.consumed]

    @property
    def spans(self) -> list[int]:
        """Number of spans of every consumed trajectory that was accepted."""
        heard = (self.accepted.get(asked.trajectory_id) for _, asked in self.consumed)
        return [h.event.spans for h in heard if h]

    def decodings(self) -> Iterator[Decoding]:
        """What slots did, of all that finished (accepted or not) and all that departed."""
        for heard in self.finishes:
            f = heard.event
            yield Decoding(f.lane, f.slot, f.started, f.ended, f.version, f.trajectory_id, f.attempt, f.tokens)
        for left in self.departures:
            columns = (left.slots, left.started, left.trajectory_ids, left.attempts, left.tokens)
            for slot, started, trajectory_id, attempt, tokens in zip(*columns, strict=True):
                asked = self.dispatches.get((trajectory_id, attempt))
                if slot >= 0 and asked:
                    version = asked[0].version
                    yield Decoding(left.lane, slot, started, left.ended, version, trajectory_id, attempt, tokens)

    # -- telling ---------------------------------------------------------------------------------------------

    def take(self, record: Record) -> None:
        """The event first, then the commands it caused, in order."""
        self._departed = None
        self._event(record.seq, record.now, record.event)
        for command in record.commands:
            self._command(record.seq, record.now, command)

    def _event(self, seq: int, now: float, event: e.Event) -> None:
        match event:
            case e.Opened():
                self.sessions.append((seq, now, event))
                self._running.clear()
                self._lives.clear()
            case e.LaneLost(lane=lane, life=life):
                if life in (None, self._lives[lane]):
                    self._stop_lane(lane)
            case e.Departed():
                self.departures.append(event)
                self._departed = event
            case e.Finished():
                self._finished(Heard(seq, now, event))
            case e.GenerationFailed():
                running = self._running.get(event.trajectory_id)
                if running and running.attempt == event.attempt:
                    del self._running[event.trajectory_id]
            case e.Scored():
                heard = self.accepted.get(event.trajectory_id)
                if heard and heard.event.attempt == event.attempt:
                    self.scores[event.trajectory_id].append((seq, event.reward))
            case e.Trained():
                self._trained(seq, now, event)
            case e.Rebuilt():
                self.rebuilt.append((seq, event))
            case e.Evaluated():
                self.evaluations.append((now, event))
            case _:
                pass

    def _command(self, seq: int, now: float, command: e.Command) -> None:
        match command:
            case e.StartLane(lane=lane):
                self._lives[lane] += 1
                self._stop_lane(lane)
            case e.Generate():
                self._generate(seq, now, command)
            case e.Abort():
                for trajectory_id in command.trajectory_ids:
                    self._running.pop(trajectory_id, None)
            case e.Attach():
                self._attached(seq, command)
            case e.Evict():
                self.evictions.append((seq, command))
            case e.Continue():
                self.continues[command.lane].append((seq, command.version))
            case e.Train():
                self.trains_of[command.iteration].append((seq, command))
            case e.Steer():
                self.steers.append((seq, command))
            case e.Quarantine():
                self.quarantines.append((seq, now, command))
            case e.Stop():
                self.stops.append((seq, command))
            case _:
                pass

    def _attached(self, seq: int, command: e.Attach) -> None:
        """A trajectory that runs changes lanes if it departed, in the same attempt, from the lane it ran on."""
        left = self._departed
        gone = set(zip(left.trajectory_ids, left.attempts, strict=True)) if left else set()
        for key in zip(command.trajectory_ids, command.attempts, strict=True):
            running = self._running.get(key[0])
            if left is None or key not in gone or running is None or running.attempt != key[1]:
                self.astray.append(f"trajectory {key[0]}, attempt {key[1]}: attached at seq {seq}, but did not depart")
            elif not running.lane == left.lane == command.origin:
                self.astray.append(
                    f"trajectory {key[0]}: attached from lane {command.origin} at seq {seq}, it ran on {running.lane}"
                )
            else:
                self._running[key[0]] = replace(running, lane=command.lane)

    def _stop_lane(self, lane: int) -> None:
        self._running = {t: dispatch for t, dispatch in self._running.items() if dispatch.lane != lane}

    def _finished(self, heard: Heard) -> None:
        self.finishes.append(heard)
        event = heard.event
        running = self._running.get(event.trajectory_id)
        if running and running.attempt == event.attempt and running.lane == event.lane:
            del self._running[event.trajectory_id]
            self.accepted[event.trajectory_id] = heard

    def _generate(self, seq: int, now: float, command: e.Generate) -> None:
        for trajectory_id, attempt in zip(command.trajectory_ids, command.attempts, strict=True):
            dispatch = Dispatch(
                seq, now, command.lane, command.version, command.group_id, command.prompt_id, trajectory_id, attempt
            )
            self.first_dispatch.setdefault(command.group_id, dispatch)
            self.dispatches[trajectory_id, attempt].append(dispatch)
            if trajectory_id in self._running:
                self.repeated.append((dispatch, f"attempt {self._running[trajectory_id].attempt} still ran"))
            elif trajectory_id in self.accepted:
                self.repeated.append((dispatch, f"it had finished at seq {self.accepted[trajectory_id].seq}"))
            self.accepted.pop(trajectory_id, None)
            self.scores.pop(trajectory_id, None)
            self._running[trajectory_id] = dispatch

    def _trained(self, seq: int, now: float, event: e.Trained) -> None:
        self.publishes.append((seq, now, event))
        commanded = self.trains_of.get(event.version - 1)
        if commanded:
            self.consumptions.append(Consumption(commanded[-1][0], seq, now, commanded[-1][1], event))
        else:
            self.unexplained.append((seq, event))


def tell(run: Run) -> Story:
    """Tell the story of a run from its first event to its last."""
    story = Story(run.group_size)
    for record in run.records:
        story.take(record)
    return story
