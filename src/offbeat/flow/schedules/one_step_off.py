"""One step off (verl's recipe): while the learner trains on one batch, the next is sampled under one earlier version.

A batch is sampled whole under the version that was newest when its first group started, and weights change hands
between batches only, so the longest response of each batch is still waited for. Every trajectory keeps its version
(C1); staleness is 1 at most.
"""

from __future__ import annotations

from offbeat.flow.ledger import LiveGroup
from offbeat.flow.schedules.schedule import Schedule
from offbeat.flow.window import Window


class OneStepOff(Schedule):
    def pins(self, window: Window) -> int | None:
        """The version of the batch that is being sampled, else the newest."""
        oldest = window.oldest()
        return window.newest if oldest is None else oldest

    def admits(self, window: Window, version: int) -> bool:
        plan = window.plan
        return window.outstanding(window.newest) + plan.group_size <= plan.batch_size

    def batch(self, window: Window) -> list[LiveGroup] | None:
        return window.oldest_batch()  # all there is: no more than a batch is ever outstanding
