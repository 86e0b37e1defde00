"""Which lane has most free slots, and what lanes hold, kept up to date lane by lane, not looked up in all of them.

Lanes say that something about them changed by adding their number to `touched`; a question first takes those in.
*Same answers*: `best` is `placement.roomiest` over all lanes; tests hold them to each other. *Every free slot counts*:
nobody has to announce one, whether a response ended there or was to come and ended elsewhere.
This file decides nothing: which version a group starts under is `issuing`'s.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from offbeat.flow.lanes import Health, Lane

K = TypeVar("K")
Key = tuple[str, int]
ANY: Key = ("any", -1)
"""Lanes that hold a version, whichever."""
MOST_KEYS = 4
NEXT = 1 << 62


class _Seen(NamedTuple):
    """A lane when it was last looked at: `free` 0 unless it is ready and may be given more; `kept` slots are for the
    version that is `coming`: -1 for none, NEXT for whatever is newest when the lane is empty."""

    free: int
    choosable: bool
    newest: int
    loaded: frozenset[int]
    held: frozenset[int]
    kept: int
    coming: int
    highest: int
    kind: tuple[bool, int, int, int, int]
    """What its place in the counts depends on, besides the versions it holds."""


NOTHING = _Seen(0, False, -1, frozenset(), frozenset(), 0, -1, -1, (False, -1, -1, 0, -1))


class Vacancies:
    """`refills`: may a lane that holds responses be given more?"""

    def __init__(self, lanes: Sequence[Lane], refills: bool) -> None:
        self.lanes = lanes
        self.refills = refills
        self.touched = set(range(len(lanes)))
        for lane in lanes:
            lane.touched = self.touched
        self._seen = [NOTHING] * len(lanes)
        self._heaps: dict[Key, list[tuple[int, int]]] = {}
        self._open: dict[int, int] = {}
        """Lanes with free slots by their newest version, choosable or not."""
        self._highest: dict[int, int] = {}
        """Ready lanes by the highest version they hold or load."""
        self._holders: dict[int, int] = {}
        """Lanes by each version they hold or load."""
        self._kept: dict[tuple[int, int], int] = {}
        """Lanes by (version that is coming to them, slots kept for it)."""
        self._pushed = 0

    def best(self, key: Key) -> Lane | None:
        """The lane with most free slots, the first of these, among those that `key` names."""
        self._take_in()
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
        self._take_in()
        return max(self._open, default=None)

    @property
    def highest(self) -> int:
        """The highest version that any ready lane holds or loads; 0 where there is none."""
        self._take_in()
        return max(0, max(self._highest, default=0))

    def reserved(self, above: int = 0) -> int:
        """Free slots, those above so many on each, of ready lanes that are about to hold the newest version: it loads
        there, or nothing else stays on them. (A lane that takes up an older version to help with it keeps none.)"""
        self._take_in()
        highest = max(self._highest, default=0)
        return sum(n * max(0, kept - above) for (coming, kept), n in self._kept.items() if coming >= highest)

    def holds(self, version: int) -> bool:
        """Does any lane hold this version, or is it loading it?"""
        self._take_in()
        return version in self._holders

    def _take_in(self) -> None:
        if not self.touched:
            return
        for index in self.touched:
            before = self._seen[index]
            seen = self._look(self.lanes[index], before)
            if seen == before:
                continue
            self._seen[index] = seen
            if seen.kind != before.kind or seen.held is not before.held:
                self._recount(before, -1)
                self._recount(seen, 1)
            if seen.choosable:
                self._pushed += 1
                for key, heap in self._heaps.items():
                    if _fits(seen, key):
                        heapq.heappush(heap, (-seen.free, index))
        self.touched.clear()
        if len(self._heaps) > MOST_KEYS or self._pushed > 4 * len(self.lanes) + 64:
            self._heaps.clear()
            self._pushed = 0

    def _recount(self, seen: _Seen, change: int) -> None:
        if seen.kept:
            _count(self._kept, (seen.coming, seen.kept), change)
        if seen.free and seen.newest >= 0:
            _count(self._open, seen.newest, change)
        if seen.highest >= 0:
            _count(self._highest, seen.highest, change)
            for version in seen.held:
                _count(self._holders, version, change)

    def _gather(self, key: Key) -> list[tuple[int, int]]:
        heap = [(-seen.free, i) for i, seen in enumerate(self._seen) if seen.choosable and _fits(seen, key)]
        heapq.heapify(heap)
        return heap

    def _look(self, lane: Lane, before: _Seen) -> _Seen:
        if lane.health is not Health.READY:
            return NOTHING
        free = lane.slots - len(lane.held) - len(lane.expected)
        left_over = free + len(lane.departing)
        if free < 0 or (not self.refills and lane.given >= lane.slots):
            free = 0
        loaded, held, newest, highest = before.loaded, before.held, before.newest, before.highest
        loading = lane.loading
        if lane.loaded != loaded or len(held) != len(loaded) + len(loading) or not loading <= held:
            loaded, held = frozenset(lane.loaded), frozenset(lane.loaded | loading)
            newest, highest = max(loaded, default=-1), max(held, default=0)
        coming = max(loading) if loading else -1
        if coming < newest:
            coming = -1
        if not loading and (not loaded or (lane.departing and left_over == lane.slots)):
            coming = NEXT
        kept = max(0, left_over) if coming >= 0 else 0
        return _Seen(
            free,
            bool(free and loaded and not lane.paused and not lane.departing),
            newest,
            loaded,
            held,
            kept,
            coming,
            highest,
            (free > 0, newest, highest, kept, coming),
        )


def _fits(seen: _Seen, key: Key) -> bool:
    kind, version = key
    if kind == "newest":
        return seen.newest == version
    return kind == "any" or version in seen.loaded


def _count(counts: dict[K, int], key: K, change: int) -> None:
    left = counts.get(key, 0) + change
    if left:
        counts[key] = left
    else:
        del counts[key]
