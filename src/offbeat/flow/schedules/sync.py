"""Synchronous training: sample one batch under the current version, wait for all of it, train, publish, repeat.

Every trajectory is consumed at staleness 0; the learner and the lanes take turns.
"""

from __future__ import annotations

from offbeat.flow.ledger import LiveGroup
from offbeat.flow.schedules.schedule import Schedule
from offbeat.flow.window import Window


class Sync(Schedule):
    def admits(self, window: Window, version: int) -> bool:
        plan = window.plan
        return (
            not window.training and version == window.newest and window.in_hand() + plan.group_size <= plan.batch_size
        )

    def batch(self, window: Window) -> list[LiveGroup] | None:
        return window.oldest_batch()  # all there is: no more than a batch is ever outstanding
