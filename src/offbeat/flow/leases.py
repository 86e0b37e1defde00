"""Every running trajectory has a lease; without a new token before it ends, the trajectory is restarted.

Deadlines sit in a heap and are corrected lazily, so renewing costs nothing until a deadline passes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from offbeat.flow.ledger import Member, Status


class Leases:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._heap: list[tuple[float, int, int, Member]] = []

    def grant(self, member: Member) -> None:
        """Watch a member that was just dispatched; its `lease` is the deadline."""
        heapq.heappush(self._heap, (member.lease, member.trajectory_id, member.attempt, member))

    def expired(self, now: float) -> Iterator[Member]:
        """Members whose lease ran out, each once."""
        while self._heap and self._heap[0][0] <= now:
            _, trajectory_id, attempt, member = heapq.heappop(self._heap)
            if member.status is not Status.RUNNING or member.attempt != attempt:
                continue
            if member.lease > now:
                heapq.heappush(self._heap, (member.lease, trajectory_id, attempt, member))
            else:
                yield member
