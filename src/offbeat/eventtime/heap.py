"""An event heap in total order: by time, then by the order in which things were pushed.

*Order law*: of two entries with the same time the one pushed first comes out first, so a simulation repeats exactly
whatever the entries are. The heap never compares entries. It knows no clock: what lies in the past is still handed out.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class EventHeap(Generic[T]):
    def __init__(self) -> None:
        self._entries: list[tuple[float, int, T]] = []
        self._next = count().__next__

    def push(self, at: float, what: T) -> None:
        """Raises ValueError for a time that is not a number: it would have no place in the order."""
        if at != at:
            raise ValueError(f"an event at {at} has no place in time")
        heapq.heappush(self._entries, (at, self._next(), what))

    def pop(self) -> tuple[float, T]:
        """The earliest entry with its time. Raises IndexError where there is none."""
        at, _, what = heapq.heappop(self._entries)
        return at, what

    @property
    def earliest(self) -> float:
        """Time of the next entry, infinite where there is none."""
        return self._entries[0][0] if self._entries else float("inf")

    def __len__(self) -> int:
        return len(self._entries)
