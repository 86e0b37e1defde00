"""Runs of the scheduler against the fake world, watched by an oracle that knows nothing of the scheduler's state."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from offbeat import events as e
from offbeat.flow.plan import Plan
from offbeat.flow.scheduler import Scheduler
from offbeat.testing.fake_world import FakeWorld


@dataclass
class Tape:
    """A journal in memory and the facts an outsider can derive from it."""

    rows: list[tuple[e.Event, float, list[e.Command]]] = field(default_factory=list)

    def record(self, event: e.Event, now: float, commands: Sequence[e.Command]) -> None:
        self.rows.append((event, now, list(commands)))

    def commands(self) -> list[e.Command]:
        return [c for _, _, commands in self.rows for c in commands]

    def events(self) -> list[e.Event]:
        return [event for event, _, _ in self.rows]

    def versions(self) -> dict[int, set[int]]:
        """group -> versions it was ever dispatched under (C1 wants one)."""
        found: dict[int, set[int]] = {}
        for command in self.commands():
            if isinstance(command, e.Generate):
                found.setdefault(command.group_id, set()).add(command.version)
        return found

    def consumed(self) -> list[tuple[int, int]]:
        """(iteration, group) of every committed consumption, in order."""
        found, pending = [], None
        for event, _, commands in self.rows:
            if isinstance(event, e.Trained):
                assert pending is not None
                assert event.version == pending.iteration + 1
                found += [(pending.iteration, g) for g in pending.group_ids]
                pending = None
            for command in commands:
                if isinstance(command, e.Train):
                    pending = command
        return found

    def staleness(self) -> list[int]:
        versions = self.versions()
        return [iteration - min(versions[group]) for iteration, group in self.consumed()]


def plan(**changes: object) -> Plan:
    values: dict[str, object] = {
        "group_size": 2,
        "batch_size": 8,
        "bound": 2,
        "iterations": 12,
        "lanes": 1,
        "lease_seconds": 100.0,
        "stall_seconds": 2000.0,
        "evaluate_every": 5,
    } | changes
    bound = int(values["bound"])  # type: ignore[call-overload]
    values.setdefault("live_versions", bound + 1)
    values.setdefault("outstanding_limit", (bound + 1) * int(values["batch_size"]))  # type: ignore[call-overload]
    return Plan(**values)  # type: ignore[arg-type]


def drive(
    scheduler: Scheduler, world: FakeWorld, tape: Tape, most_events: int = 100_000, stop_after: int | None = None
) -> e.Stop | None:
    """The main loop with a limit: None when it was cut off after `stop_after` events."""
    for count in range(most_events):
        if scheduler.stopped:
            return scheduler.stopped
        if stop_after is not None and count == stop_after:
            return None
        event = world.next_event()
        now = world.now
        commands = scheduler.handle(event, now)
        tape.record(event, now, commands)
        for command in commands:
            world.perform(command)
    raise AssertionError(f"no end after {most_events} events: deadlock or livelock")


def heavy(rng: random.Random) -> float:
    return min(200.0, rng.paretovariate(1.0))
