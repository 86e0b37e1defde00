"""Which lane has most free slots, and what lanes hold, kept up to date lane by lane, not looked up in all of them.

Lanes say that something about them changed by adding their number to `touched`; a question first takes those in.
*Same answers*: `best` is `placement.roomiest` over the lanes that may have free slots; tests hold them to each other.
This file decides nothing: which version a group starts under is `issuing`'s.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from offbeat.flow.lanes import Health, Lane

Key = tuple[str, int]
ANY: Key = ("any", -1)
"""Lanes that hold a version, whichever."""
MOST_KEYS = 16


class _Seen(NamedTuple):
    """A lane when it was last looked at: `free` 0 unless it is ready and may be given more."""

    free: int
    choosable: bool
    newest: int
    loaded: frozenset[int]
    held: frozenset[int]
    reserved: int
    highest: int


NOTHING = _Seen(0, False, -1, frozenset(), frozenset(), 0, -1)


class Vacancies:
    """`vacant` are the lanes that may have free slots: no other is ever chosen."""

    def __init__(self, lanes: Sequence[Lane], refills: bool) -> None:
        self.lanes = lanes
        self.refills = refills
        self.vacant: set[int] = set()
        self.touched = set(range(len(lanes)))
        for lane in lanes:
            lane.touched = self.touched
        self._full: set[int] = set()
        self._seen = [NOTHING] * len(lanes)
        self._heaps: dict[Key, list[tuple[int, int]]] = {}
        self._open: dict[int, int] = {}
        """Lanes with free slots by their newest version, choosable or not."""
        self._highest: dict[int, int] = {}
        """Ready lanes by the highest version they hold or load."""
        self._holders: dict[int, int] = {}
        """Lanes by each version they hold or load."""
        self._reserved = 0

    def freed(self, lane: int) -> None:
        """A slot of this lane may be free now."""
        self.vacant.add(lane)
        self.touched.add(lane)

    def best(self, key: Key) -> Lane | None:
        """The lane with most free slots, the first of these, among those that `key` names."""
        self._settle()
        heap = self._heaps.get(key)
        if heap is None:
            heap = self._heaps[key] = self._gather(key)
        while heap:
            free, index = heap[0]
            seen = self._seen[index]
            if seen.choosable and seen.free == -free and _fits(seen, key):
                return self.lanes[index]
            heapq.heappop(heap)
        return None

    @property
    def newest(self) -> int | None:
        """The newest version that is the newest of a lane with free slots."""
        self._settle()
        return max(self._open, default=None)

    @property
    def highest(self) -> int:
        """The highest version that any ready lane holds or loads; 0 where there is none."""
        self._take_in()
        return max(0, max(self._highest, default=0))

    @property
    def reserved(self) -> int:
        """Slots of ready lanes that are about to take up the newest version."""
        self._take_in()
        return self._reserved

    def holds(self, version: int) -> bool:
        """Does any lane hold this version, or is it loading it?"""
        self._take_in()
        return version in self._holders

    def _settle(self) -> None:
        """Take in what changed, and forget the lanes that are full."""
        self._take_in()
        for index in self._full:
            if self.lanes[index].free <= 0:
                self.vacant.discard(index)
        self._full.clear()

    def _take_in(self) -> None:
        for index in self.touched:
            before, seen = self._seen[index], self._look(self.lanes[index])
            if self.lanes[index].free <= 0:
                self._full.add(index)
            if seen != before:
                self._seen[index] = seen
                self._recount(before, -1)
                self._recount(seen, 1)
                if seen.choosable:
                    for key, heap in self._heaps.items():
                        if _fits(seen, key):
                            heapq.heappush(heap, (-seen.free, index))
        self.touched.clear()
        if len(self._heaps) > MOST_KEYS:
            self._heaps.clear()
        for key, heap in self._heaps.items():
            if len(heap) > 4 * len(self.lanes) + 64:
                self._heaps[key] = self._gather(key)

    def _recount(self, seen: _Seen, change: int) -> None:
        self._reserved += change * seen.reserved
        if seen.free and seen.newest >= 0:
            _count(self._open, seen.newest, change)
        if seen is not NOTHING:
            _count(self._highest, seen.highest, change)
            for version in seen.held:
                _count(self._holders, version, change)

    def _gather(self, key: Key) -> list[tuple[int, int]]:
        heap = [(-seen.free, i) for i, seen in enumerate(self._seen) if seen.choosable and _fits(seen, key)]
        heapq.heapify(heap)
        return heap

    def _look(self, lane: Lane) -> _Seen:
        if lane.health is not Health.READY:
            return NOTHING
        free = max(0, lane.free) if lane.lane in self.vacant else 0
        if not self.refills and lane.given >= lane.slots:
            free = 0
        newest = max(lane.loaded, default=-1)
        return _Seen(
            free=free,
            choosable=bool(free and lane.loaded and not lane.paused and not lane.departing),
            newest=newest,
            loaded=frozenset(lane.loaded),
            held=frozenset(lane.loaded | lane.loading),
            reserved=max(0, lane.slots - lane.load) if lane.turning else 0,
            highest=max(newest, max(lane.loading, default=-1), 0),
        )


def _fits(seen: _Seen, key: Key) -> bool:
    kind, version = key
    if kind == "newest":
        return seen.newest == version
    return kind == "any" or version in seen.loaded


def _count(counts: dict[int, int], key: int, change: int) -> None:
    left = counts.get(key, 0) + change
    if left:
        counts[key] = left
    else:
        del counts[key]
