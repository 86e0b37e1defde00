"""What a run asks of whoever hosts its workers: start, tell, hear, end.

Two do: `local.LocalBackend` (processes of this machine) and `ray_backend.RayBackend` (actors of a cluster). Both
run the same serving loops and speak the same messages: a run cannot tell them apart; `tests/contract` holds them to it.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Protocol

import msgspec

from offbeat.backends.local import Name


class Backend(Protocol):
    """Workers by name. What one said arrives in order, then `Died` once; nothing is heard of one that was ended."""

    @property
    def workers(self) -> Container[Name]:
        """Those that were started and have not ended, as far as is known."""

    def start(self, name: Name, hello: msgspec.Struct) -> None:
        """Start a worker, ending the one of the same name first."""

    def send(self, name: Name, message: msgspec.Struct) -> None:
        """Tell a worker; never waits. Nothing happens when it is gone: its death is on its way."""

    def poll(self, seconds: float) -> list[tuple[Name, Any]]:
        """Wait up to `seconds` for what workers say and for deaths."""

    def wake(self) -> None:
        """Let a `poll` under way return; safe in a signal handler."""

    def end(self, name: Name) -> None:
        """End one worker; nothing happens when there is none of this name."""

    def close(self) -> None:
        """End all workers."""
