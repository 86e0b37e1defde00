"""What a schedule decides: when a group may start, when a batch may, and what a new version does to what is running.

Every method is a pure function of the window. The defaults are those of a schedule that keeps C1 and C3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from offbeat.flow.ledger import LiveGroup
from offbeat.flow.partition import partition
from offbeat.flow.window import Window


class Schedule(ABC):
    """`splices`: None keeps C1; otherwise a new version goes on with responses under way, after computing prompt and
    tokens again ("prefill") or over the keys and values of the earlier versions ("cache").
    `bounded`: no batch holds anything more than the bound's versions old (C3), checked at every batch.

    `moves`: responses under way may move to another lane of their version. `refills`: a lane that holds responses may
    be given more; otherwise it is filled once, and again when it is empty.
    """

    splices: ClassVar[Literal["prefill", "cache"] | None] = None
    bounded: ClassVar[bool] = True
    moves: ClassVar[bool] = False
    refills: ClassVar[bool] = True

    @abstractmethod
    def admits(self, window: Window, version: int) -> bool:
        """May one more group start under `version`?"""

    @abstractmethod
    def batch(self, window: Window) -> list[LiveGroup] | None:
        """The groups of the next batch, or None while it cannot start. Asked only while the learner is idle."""

    def pins(self, window: Window) -> int | None:
        """The version new groups must start under; None: the newest that a lane holds."""
        return None

    def pauses(self, window: Window) -> bool:
        """Must lanes stand still now? Asked of schedules that splice."""
        return False

    def headroom(self, window: Window) -> int:
        """Trajectories that may be started under the newest version now. Asked of schedules that move."""
        return max(0, window.room())

    def share(self, load: dict[int, int], newest: int, lanes: int, room: int, floor: dict[int, int]) -> dict[int, int]:
        """Lanes for each version of `load` (trajectories), at least `floor`; each of `lanes` has `room` versions."""
        return partition(lanes * room, lanes, load, floor)
