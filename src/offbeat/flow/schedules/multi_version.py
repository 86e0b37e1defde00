"""Multi-version streaming (DORA, arXiv 2604.26256): admit by the demand bound, train on the oldest ready groups.

*Bounded-staleness invariant* (C3): see `offbeat.flow.staleness`. By default nothing is ever dropped: an old trajectory
that is not finished holds the next batch back (drain). Where the plan evicts, the scheduler gives up what is too old
once a batch is taken; then neither admission nor start has to look ahead. What remains of admission is that nothing
starts too old: it would be taken, or given up, before it could be of use.
"""

from __future__ import annotations

from collections import Counter

from offbeat.flow.ledger import LiveGroup
from offbeat.flow.schedules.schedule import Schedule
from offbeat.flow.staleness import admits, capacity, may_start
from offbeat.flow.window import Window


class MultiVersion(Schedule):
    moves = True

    def headroom(self, window: Window) -> int:
        plan = window.plan
        if plan.evicts:
            return super().headroom(window) if self._young_enough(window, window.newest) else 0
        bound = capacity(window.newest, window.iteration, window.bound, plan.batch_size)
        return max(0, min(super().headroom(window), bound - window.outstanding(window.newest)))

    def admits(self, window: Window, version: int) -> bool:
        plan = window.plan
        if not window.has_room():
            return False
        if plan.evicts:
            return self._young_enough(window, version)
        return admits(
            window.outstanding,
            version,
            window.newest,
            window.iteration,
            window.bound,
            plan.batch_size,
            plan.group_size,
        )

    def _young_enough(self, window: Window, version: int) -> bool:
        """May the next batch hold what starts under `version` now?"""
        return window.staleness(version) <= window.bound

    def batch(self, window: Window) -> list[LiveGroup] | None:
        plan = window.plan
        chosen = window.oldest_batch()
        if chosen is None or plan.evicts:
            return chosen

        taken = Counter(group.version for group in chosen)

        def rest(u: int) -> int:
            return window.outstanding(u) - plan.group_size * sum(n for version, n in taken.items() if version <= u)

        if may_start(rest, window.newest, window.iteration, plan.bound, plan.batch_size):
            return chosen
        return None
