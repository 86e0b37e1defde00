"""A virtual clock: time is what it is told, and it never goes back."""

from __future__ import annotations


class VirtualClock:
    """`now` in seconds. Example: clock = VirtualClock(); clock.advance(3.5); clock.now == 3.5"""

    __slots__ = ("now",)

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def advance(self, to: float) -> float:
        """Go on to a moment. One that lies in the past is now: what is late happens at once."""
        if to > self.now:
            self.now = to
        return self.now
