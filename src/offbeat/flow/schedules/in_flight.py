"""In-flight weight updates (PipelineRL, arXiv 2509.19128): lanes never stop, a new version takes over mid-sequence.

What is running goes on over the keys and values that earlier versions computed. Nothing waits and nothing is lost
(C2), but a response is of as many versions as were published while it ran (C1 is given up), and its oldest token may
be older than any bound (so is C3).
"""

from __future__ import annotations

from offbeat.flow.ledger import LiveGroup
from offbeat.flow.schedules.schedule import Schedule
from offbeat.flow.window import Window


class InFlight(Schedule):
    splices = "cache"
    bounded = False

    def admits(self, window: Window, version: int) -> bool:
        return window.has_room()

    def batch(self, window: Window) -> list[LiveGroup] | None:
        return window.oldest_batch()
