"""The lane with most room, or with most and least load, of a fixed set while work is put on it: heaps for `moves`.

*Same answers*: ties go as in a scan of all lanes, in their order. Both are good for one planning only: nothing but the
plan itself may change the lanes meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from offbeat.flow.lanes import Lane


class Homes:
    """Lanes that take trajectories in, one after the other: each goes where most slots are free, lowest number first.

    `free` are all their free slots.
    """

    def __init__(self, lanes: Iterable[Lane]) -> None:
        self._heap = [(-lane.free, lane.lane, lane) for lane in lanes]
        self.free = sum(max(0, -free) for free, _, _ in self._heap)
        heapq.heapify(self._heap)

    def take(self) -> Lane:
        """The lane for one more, counted as given. Raises IndexError where there is no lane."""
        free, number, lane = self._heap[0]
        heapq.heapreplace(self._heap, (free + 1, number, lane))
        self.free -= free < 0
        return lane


class Scale:
    """The fullest and the emptiest by `load`: of equals the first in the sequence, and the lowest number."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._place = {lane.lane: place for place, lane in enumerate(lanes)}
        self._full = [(-lane.load, place, lane) for place, lane in enumerate(lanes)]
        self._empty = [(lane.load, lane.lane, lane) for lane in lanes]
        heapq.heapify(self._full)
        heapq.heapify(self._empty)

    def weigh(self, lane: Lane) -> None:
        """The load of this lane has changed."""
        heapq.heappush(self._full, (-lane.load, self._place[lane.lane], lane))
        heapq.heappush(self._empty, (lane.load, lane.lane, lane))

    def fullest(self) -> Lane:
        while -self._full[0][0] != self._full[0][2].load:
            heapq.heappop(self._full)
        return self._full[0][2]

    def emptiest(self) -> Lane:
        while self._empty[0][0] != self._empty[0][2].load:
            heapq.heappop(self._empty)
        return self._empty[0][2]
