"""Simulate a cluster under a schedule: the production loop and scheduler over a simulated world."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from offbeat.errors import RunFailed
from offbeat.events import Command, Event
from offbeat.flow.scheduler import Scheduler
from offbeat.loop import Observer, run
from offbeat.sim.cluster import Cluster
from offbeat.sim.measures import Measures
from offbeat.sim.timeline import Timeline
from offbeat.sim.world import SimWorld


class NoJournal:
    """A journal (ports.Journal) that keeps nothing: a simulation is repeated, not resumed."""

    def record(self, event: Event, now: float, commands: Sequence[Command]) -> None:
        pass


class Simulated(NamedTuple):
    """One run: its measures, how many events it took and how long."""

    schedule: str
    measures: Measures
    events: int
    wall_seconds: float
    timeline: Timeline | None = None

    @property
    def result(self) -> dict[str, Any]:
        return self.measures.result()


def simulate(
    cluster: Cluster,
    schedule: str,
    progress: Callable[[int], None] | None = None,
    observers: Sequence[Observer] = (),
    drawn: bool = False,
) -> Simulated:
    """Run `schedule` on `cluster` to its last iteration. `progress` hears how many iterations are done;
    `drawn`: with a timeline for the page.

    Raises RunFailed where the scheduler gives the run up.
    """
    began = time.perf_counter()
    world = SimWorld(cluster, schedule)
    measures = Measures(cluster, world, schedule, progress)
    timeline = Timeline(world) if drawn else None
    watching: list[Observer] = [measures.saw, *([timeline.saw] if timeline else []), *observers]
    stop = run(world, Scheduler(cluster.plan(schedule)), NoJournal(), watching)
    if stop.outcome != "finished":
        raise RunFailed(f"the simulation of {schedule} stopped: {stop.reason}")
    return Simulated(schedule, measures, world.events, time.perf_counter() - began, timeline)
