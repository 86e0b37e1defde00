"""Run directories as the real parts write them: the real scheduler against the fake world, journalled by the run log.

The fake world knows no slots and reports nothing of a step; both are put in here, after the fact: slots such that
trajectories of one slot never overlap, and reports from the rewards of the batch.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from offbeat import events as e
from offbeat.flow.plan import plan_from
from offbeat.flow.scheduler import Scheduler
from offbeat.live.runlog import RunLog
from offbeat.records import Prompt, Span, Trajectory
from offbeat.report.read import DATABASE
from offbeat.settings import Settings
from offbeat.testing.fake_world import FakeWorld
from tests.report.audited_run import span_versions
from tests.report.editable_run import small_settings, step_report

Happening = tuple[e.Event, float, list[e.Command]]
FAULTS = {"lane": 0.004, "learner": 0.01, "score": 0.05}


def write_scheduled_run(
    directory: Path,
    seed: int = 0,
    settings: Settings | None = None,
    faults: dict[str, float] | None = None,
    kills: int = 0,
    most_events: int = 200_000,
) -> Path:
    """Write a run to `directory` and return it.

    `faults` are rates of the fake world; the main process is killed `kills` times and the run taken up again.
    `most_events` cuts the last session off.
    """
    open_scheduled_run(directory, seed, settings, faults, kills, most_events).close()
    return directory


def open_scheduled_run(
    directory: Path,
    seed: int = 0,
    settings: Settings | None = None,
    faults: dict[str, float] | None = None,
    kills: int = 0,
    most_events: int = 200_000,
) -> RunLog:
    """The same, with the log still open, as in a run that goes on: its newest rows lie in the write-ahead log."""
    chosen = settings or small_settings(run__lease_seconds=300, run__stall_seconds=4000)
    directory.mkdir(parents=True, exist_ok=True)
    log = RunLog.create(directory / DATABASE, _meta(chosen))
    _write(log, _with_slots(_drive(chosen, seed, faults or {}, kills, most_events)), chosen, random.Random(seed))
    return log


def _meta(settings: Settings) -> dict[str, str]:
    settled = {"settings": settings.model_dump_json(), "created": "2030-01-02T03:04:05+00:00"}
    return settled | {"offbeat_version": "0.1.0", "digest_0": "0" * 64, "policy": "policy"}


def _drive(settings: Settings, seed: int, faults: dict[str, float], kills: int, most_events: int) -> list[Happening]:
    rng = random.Random(seed)
    scheduler = Scheduler(plan_from(settings))
    rows: list[Happening] = []
    for session in range(kills + 1):
        start = rows[-1][1] if rows else 0.0
        lanes, slots = settings.rollout.lanes, settings.rollout.slots
        world = FakeWorld(seed + session, lanes, slots, None, 5.0, faults, start, session, scheduler.window.newest)
        for _ in range(rng.randrange(80, 300) if session < kills else most_events):
            if scheduler.stopped:
                return rows
            event = world.next_event()
            commands = scheduler.handle(event, world.now)
            rows.append((event, world.now, commands))
            for command in commands:
                world.perform(command)
    return rows


def _with_slots(rows: Sequence[Happening]) -> list[Happening]:
    """Give everything decoded the lowest slot of its lane that is free when it starts (intervals in order of start)."""
    free: dict[int, list[int]] = {}
    busy: dict[int, list[tuple[float, int]]] = {}
    slot_of: dict[tuple[int, int], int] = {}
    decoded = [
        (started, i, part, event) for i, (event, _, _) in enumerate(rows) for part, started in enumerate(_starts(event))
    ]
    for started, i, part, event in sorted(decoded, key=lambda item: item[:3]):
        idle, running = free.setdefault(event.lane, []), busy.setdefault(event.lane, [])
        while running and running[0][0] <= started:
            heapq.heappush(idle, heapq.heappop(running)[1])
        slot = heapq.heappop(idle) if idle else len(running)
        heapq.heappush(running, (event.ended, slot))
        slot_of[i, part] = slot
    return [(_placed(event, i, slot_of), now, commands) for i, (event, now, commands) in enumerate(rows)]


def _starts(event: e.Event) -> tuple[float, ...]:
    match event:
        case e.Finished():
            return (event.started,)
        case e.Departed():
            return event.started
        case _:
            return ()


def _placed(event: e.Event, i: int, slot_of: dict[tuple[int, int], int]) -> e.Event:
    match event:
        case e.Finished():
            return msgspec.structs.replace(event, slot=slot_of[i, 0])
        case e.Departed():
            slots = tuple(-1 if slot < 0 else slot_of[i, part] for part, slot in enumerate(event.slots))
            return msgspec.structs.replace(event, slots=slots)
        case _:
            return event


def _write(log: RunLog, rows: Sequence[Happening], settings: Settings, rng: random.Random) -> None:
    """Payloads before the event they came with, as the live world does it."""
    tokens: dict[tuple[int, int], int] = {}
    rewards: dict[tuple[int, int], float] = {}
    batch: e.Train | None = None
    version = 0
    versions = span_versions(rows)
    for event, now, commands in rows:
        match event:
            case e.Finished():
                tokens[event.trajectory_id, event.attempt] = event.tokens
                log.add_trajectory(_trajectory(event, versions[event.trajectory_id, event.attempt], rng))
            case e.Scored():
                event = msgspec.structs.replace(event, reward=float(rng.random() < _skill(version)))
                rewards[event.trajectory_id, event.attempt] = event.reward
            case e.Trained() if batch is not None:
                size = settings.schedule.group_size
                keys = [
                    (group * size + i, attempt)
                    for group, tries in zip(batch.group_ids, batch.attempts, strict=True)
                    for i, attempt in enumerate(tries)
                ]
                version, sum_of = event.version, sum(tokens[key] for key in keys)
                report = step_report(batch.iteration, sum_of, [rewards[key] for key in keys], settings, rng)
                event = msgspec.structs.replace(event, report=report, digest=f"{version:064x}")
            case e.Evaluated():
                skill = _skill(event.version)
                event = e.Evaluated(event.version, 64, min(1.0, skill + 0.04), skill)
            case _:
                pass
        for command in commands:
            if isinstance(command, e.Generate):
                text = f"{command.prompt_id}+1="
                answer = str(command.prompt_id + 1)
                log.add_prompt(command.group_id, Prompt(command.prompt_id, "running-sum", text, answer, (3, 4, 5)))
            if isinstance(command, e.Train):
                batch = command
        log.record(event, now, commands)


def _skill(version: int) -> float:
    return 0.85 - 0.7 * 0.97**version


def _trajectory(event: e.Finished, versions: tuple[int, ...], rng: random.Random) -> Trajectory:
    """Tokens shared out evenly among the spans."""
    ids = tuple(rng.randrange(10) for _ in range(event.tokens))
    logprobs = tuple(-rng.random() for _ in ids)
    ends = [len(ids) * i // len(versions) for i in range(len(versions) + 1)]
    spans = tuple(
        Span(version, ids[start:end], logprobs[start:end])
        for version, (start, end) in zip(versions, pairwise(ends), strict=True)
    )
    return Trajectory(event.trajectory_id, event.attempt, spans, event.finish_reason, "".join(map(str, ids)))
