"""Schedules by name. A seventh one is a file here and a line in `SCHEDULES`."""

from __future__ import annotations

from typing import Protocol

from offbeat.flow.ledger import LiveGroup
from offbeat.flow.schedules.multi_version import MultiVersion
from offbeat.flow.schedules.sync import Sync
from offbeat.flow.window import Window


class Schedule(Protocol):
    """When a group may start and when a batch may be trained on. Both must be pure functions of the window."""

    def admits(self, window: Window, version: int) -> bool:
        """May one more group start under `version`?"""

    def batch(self, window: Window) -> list[LiveGroup] | None:
        """The groups of the next batch, or None while it cannot start. Asked only while the learner is idle."""


SCHEDULES: dict[str, type[Schedule]] = {
    "multi-version": MultiVersion,
    "sync": Sync,
}
