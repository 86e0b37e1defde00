"""Partial rollout (Kimi k1.5, arXiv 2501.12599; APRIL, 2509.18521): stop at the batch, continue under new weights.

More is issued than a batch needs; once a batch is finished the lanes stand still, the learner trains, and what was
cut off goes on under the new version after computing prompt and tokens so far again. Nothing is lost (C2), but a
response may be of several versions (C1 is given up) and a very long one may be older than any bound (so is C3).
"""

from __future__ import annotations

from offbeat.flow.ledger import LiveGroup
from offbeat.flow.schedules.schedule import Schedule
from offbeat.flow.window import Window


class Partial(Schedule):
    splices = "prefill"
    bounded = False

    def admits(self, window: Window, version: int) -> bool:
        return window.has_room() and version == window.newest and not window.training

    def batch(self, window: Window) -> list[LiveGroup] | None:
        return window.oldest_batch()

    def pauses(self, window: Window) -> bool:
        return window.training
