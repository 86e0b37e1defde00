"""Repack (Laminar, arXiv 2510.12633): every lane goes its own way, one version at a time, and none waits.

A lane is filled once under the newest version. While its responses run out, what is left of them is packed on as few
lanes of the same version as have the slots; a lane that became empty takes up the newest version and is filled again.
Every trajectory keeps its version (C1) and nothing is lost (C2); how old it is when it is trained on follows from the
lengths and the learner's pace, and has no bound (C3 is not promised).
"""

from __future__ import annotations

from offbeat.flow.ledger import LiveGroup
from offbeat.flow.schedules.schedule import Schedule
from offbeat.flow.window import Window


class Repack(Schedule):
    bounded = False
    moves = True
    refills = False

    def admits(self, window: Window, version: int) -> bool:
        return window.has_room()

    def batch(self, window: Window) -> list[LiveGroup] | None:
        return window.oldest_batch()

    def share(self, load: dict[int, int], newest: int, lanes: int, room: int, floor: dict[int, int]) -> dict[int, int]:
        """As few lanes as hold it for each older version, the others for the newest."""
        packed = {version: least for version, least in floor.items() if version != newest}
        return packed | {newest: min(lanes, max(0, lanes * room - sum(packed.values())))}
