"""What lanes ran when, for the page: samples on a grid that widens as the run goes on, at most `MOST` of them.

A sample is the share of slots by staleness of what runs in them (against the newest version then), and for at most
`ROWS` lanes, spread evenly over all, the staleness of the oldest response each runs. So its size does not grow with
lanes or time. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from offbeat import events as e
from offbeat.flow.staleness import staleness
from offbeat.sim.world import SimWorld

MOST = 900
ROWS = 64
OLDEST = 4
"""From this staleness on all is drawn alike."""


class Sample(NamedTuple):
    """At `at` seconds: share of all slots by staleness (the last: OLDEST and more); what the chosen lanes run, None for
    an idle one, and how full they are."""

    at: float
    shares: tuple[float, ...]
    oldest: tuple[int | None, ...]
    full: tuple[float, ...]


class Timeline:
    """Feed it to `loop.run` as an observer."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.samples: list[Sample] = []
        self.training: list[tuple[float, float, int]] = []
        """(began, ended, version that it gave)"""
        self.every = 1.0
        self._next = 0.0
        lanes = len(world.lanes)
        rows = min(ROWS, lanes)
        self.lanes = [row * lanes // rows for row in range(rows)]

    def saw(self, event: e.Event, now: float, commands: Sequence[e.Command]) -> None:
        if type(event) is e.Trained:
            self.training.append((event.started, event.ended, event.version))
        if now < self._next:
            return
        self.samples.append(self._look(now))
        self._next = now + self.every
        if len(self.samples) > MOST:
            self.samples = self.samples[::2]
            self.every *= 2

    def _look(self, now: float) -> Sample:
        newest = self.world.learner.version
        counts = [0] * (OLDEST + 1)
        for lane in self.world.lanes:
            for response in lane.running.values():
                counts[min(OLDEST, staleness(newest, response.version))] += 1
        slots = self.world.slots
        total = slots * len(self.world.lanes)
        chosen = [self.world.lanes[i].running for i in self.lanes]
        oldest = tuple(
            min(OLDEST, staleness(newest, min(r.version for r in running.values()))) if running else None
            for running in chosen
        )
        full = tuple(len(running) / slots for running in chosen)
        return Sample(now, tuple(count / total for count in counts), oldest, full)
