"""Logs of the real scheduler against random service times, read as a run; and ways to tamper with them."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import msgspec

from offbeat import events as e
from offbeat.flow.plan import plan_from
from offbeat.flow.scheduler import Scheduler
from offbeat.report.audit import Audit, audit
from offbeat.report.read import PayloadFacts, PromptFacts, Record, Run
from offbeat.settings import Settings, settings_from
from offbeat.testing.fake_world import FakeWorld

GROUP, BATCH, K = 2, 8, 2


def settings(**schedule: object) -> Settings:
    data = {
        "schedule": {"group_size": GROUP, "train_batch_size": BATCH, "max_staleness": K} | schedule,
        "rollout": {"lanes": 2, "slots": 12},
        "learner": {"iterations": 10},
        "run": {"lease_seconds": 300, "stall_seconds": 4000, "evaluate_every": 4, "max_quarantined_in_a_row": 1000},
    }
    return settings_from(data)


def run_of(rows: Sequence[tuple[e.Event, float, Sequence[e.Command]]], chosen: Settings) -> Run:
    """A run as it would be read, with sound payloads for all that finished and was scored."""
    records, prompts, payloads = [], {}, {}
    versions, rewards, tokens, trains = span_versions(rows), {}, {}, {}
    for seq, (event, now, commands) in enumerate(rows, start=1):
        if isinstance(event, e.Trained):
            members = [g * GROUP + i for g in trains[event.version - 1].group_ids for i in range(GROUP)]
            report = msgspec.structs.replace(
                event.report, iteration=event.version - 1, trajectories=BATCH, tokens=sum(tokens[t] for t in members),
                reward_mean=fmean(rewards[t] for t in members),
            )  # fmt: skip
            event = msgspec.structs.replace(event, report=report, digest=f"{event.version:064x}")
        records.append(Record(seq, now, event, tuple(commands)))
        if isinstance(event, e.Finished):
            key = (event.trajectory_id, event.attempt)
            spans = versions[key]
            payloads[key] = PayloadFacts(spans, event.tokens, event.tokens, True, event.finish_reason, key)
            tokens[event.trajectory_id] = event.tokens
        if isinstance(event, e.Scored):
            key = (event.trajectory_id, event.attempt)
            rewards[event.trajectory_id] = event.reward
            payloads[key] = msgspec.structs.replace(payloads[key], reward=event.reward)
        for command in commands:
            if isinstance(command, e.Generate):
                prompts[command.group_id] = PromptFacts(command.prompt_id, "running-sum", "1+2=", "3", 4)
            if isinstance(command, e.Train):
                trains[command.iteration] = command
    return Run(Path("run"), {}, chosen, tuple(records), prompts, payloads)


def span_versions(
    rows: Sequence[tuple[e.Event, float, Sequence[e.Command]]],
) -> dict[tuple[int, int], tuple[int, ...]]:
    """The versions of every finished attempt's spans: that of its first token, then of each later Continue."""
    continues: dict[int, list[int]] = {}
    asked: dict[tuple[int, int], int] = {}
    found = {}
    for event, _, commands in rows:
        if isinstance(event, e.Finished):
            key = (event.trajectory_id, event.attempt)
            later = continues.get(event.lane, [])[asked.get(key, 0) :]
            found[key] = (event.version, *sorted({v for v in later if v > event.version}))
            assert len(found[key]) == event.spans
        for command in commands:
            if isinstance(command, e.Continue):
                continues.setdefault(command.lane, []).append(command.version)
            if isinstance(command, e.Generate):
                named = zip(command.trajectory_ids, command.attempts, strict=True)
                asked |= dict.fromkeys(named, len(continues.get(command.lane, [])))
    return found


def rows_of(seed: int, chosen: Settings, faults: bool, kills: int = 0) -> list[tuple[e.Event, float, list[e.Command]]]:
    """The real scheduler against random service times; the main process is killed and the run resumed `kills` times."""
    rng = random.Random(seed)
    scheduler = Scheduler(plan_from(chosen))
    rows: list[tuple[e.Event, float, list[e.Command]]] = []
    rates = {"lane": 0.004, "learner": 0.01, "score": 0.2} if faults else {}
    for session in range(kills + 1):
        start = rows[-1][1] if rows else 0.0
        world = FakeWorld(seed + session, 2, 12, None, 5.0, rates, start, session, scheduler.window.newest)
        left = rng.randrange(20, 150) if session < kills else 20_000
        while left and not scheduler.stopped:
            left -= 1
            event = world.next_event()
            now = world.now
            commands = scheduler.handle(event, now)
            rows.append((event, now, commands))
            for command in commands:
                world.perform(command)
        if scheduler.stopped:
            break
    return rows


@functools.cache
def good_run() -> Run:
    """A finished run with lost lanes, a lost learner, restarts, quarantined groups and a resume."""
    run = run_of(rows_of(3, settings(), faults=True, kills=1), settings())
    found = audit(run)
    assert found.ok
    assert found.outcome == "finished"
    assert found.conservation.quarantined
    assert any(attempt > 0 for command in commands(run, e.Generate) for attempt in command.attempts)
    return run


@functools.cache
def spliced_run(schedule: str = "partial") -> Run:
    """A finished run of a schedule that does not promise C1, with lost lanes, restarts and a resume."""
    chosen = settings(name=schedule)
    run = run_of(rows_of(3, chosen, faults=True, kills=1), chosen)
    found = audit(run)
    assert found.ok, found.evidence
    assert found.outcome == "finished"
    assert found.breaches["c1"]
    return run


# -- tampering -------------------------------------------------------------------------------------------------


def until(run: Run, length: int) -> Run:
    """The run as it was after its first `length` events."""
    records = run.records[:length]
    finished = {(r.event.trajectory_id, r.event.attempt) for r in records if isinstance(r.event, e.Finished)}
    return replace(run, records=records, payloads={k: p for k, p in run.payloads.items() if k in finished})


def commands(run: Run, kind: type) -> list[e.Command]:
    return [command for record in run.records for command in record.commands if isinstance(command, kind)]


def change(
    run: Run,
    event: Callable[[e.Event], e.Event | None] = lambda x: x,
    command: Callable[[e.Command], e.Command | None] = lambda x: x,
) -> Run:
    """Map every event and command; None removes it (an event becomes a Tick, so that its commands stay)."""
    records = [
        Record(r.seq, r.now, event(r.event) or e.Tick(), tuple(c for x in r.commands if (c := command(x)) is not None))
        for r in run.records
    ]
    return replace(run, records=tuple(records))


def only(target: object, after: Callable[[object], object]) -> Callable[[object], object]:
    """Apply `after` to this very object and to nothing else."""
    return lambda found: after(found) if found is target else found


def set_to(**changes: object) -> Callable[[object], object]:
    return lambda found: msgspec.structs.replace(found, **changes)


def gone(_: object) -> None:
    return None


def trained_groups(run: Run) -> list[tuple[int, int]]:
    """(iteration, group) of the Train commands that count."""
    return [(n, g) for n, t in {c.iteration: c for c in commands(run, e.Train)}.items() for g in t.group_ids]


def consumed_key(run: Run, position: int = 5) -> tuple[int, int]:
    train = {c.iteration: c for c in commands(run, e.Train)}[position]
    return train.group_ids[0] * GROUP, train.attempts[0][0]


def accepted(run: Run, key: tuple[int, int], kind: type) -> e.Event:
    """The event of this kind that names this attempt at this trajectory."""
    events = (r.event for r in run.records if isinstance(r.event, kind))
    return next(x for x in events if (x.trajectory_id, x.attempt) == key)


def with_payload(run: Run, key: tuple[int, int], **changes: object) -> Run:
    facts = msgspec.structs.replace(run.payloads[key], **changes)
    return replace(run, payloads=dict(run.payloads) | {key: facts})


def says(found: Audit, law: str, *words: str) -> None:
    assert not found.ok
    assert any(all(word in line for word in words) for line in found.evidence[law]), found.evidence
