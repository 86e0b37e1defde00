"""Every running trajectory has a lease; without a new token before it ends, the trajectory is restarted.

Deadlines sit in a heap and are corrected lazily, so renewing costs nothing until a deadline passes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import inf

from offbeat.flow.ledger import Member, Status


class Leases:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._heap: list[tuple[float, int, int, Member]] = []
        self._sweep_at = 1024

    def grant(self, member: Member) -> None:
        """Watch a member that was just dispatched; its `lease` is the deadline."""
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if _runs(entry[3], entry[2])]
            heapq.heapify(self._heap)
            self._sweep_at = 1024 + 2 * len(self._heap)
        heapq.heappush(self._heap, (member.lease, member.trajectory_id, member.attempt, member))

    @property
    def earliest(self) -> float:
        """The earliest deadline as far as known: no lease runs out before."""
        return self._heap[0][0] if self._heap else inf

    def expired(self, now: float) -> Iterator[Member]:
        """Members whose lease ran out, each once."""
        while self._heap and self._heap[0][0] <= now:
            _, trajectory_id, attempt, member = heapq.heappop(self._heap)
            if not _runs(member, attempt):
                continue
            if member.lease > now:
                heapq.heappush(self._heap, (member.lease, trajectory_id, attempt, member))
            else:
                yield member


def _runs(member: Member, attempt: int) -> bool:
    return member.status is Status.RUNNING and member.attempt == attempt
