"""What Ctrl-C and SIGTERM do to a run: before it begins they end the command, from then on they ask the run to stop.

*No interrupt is lost*: Python may raise KeyboardInterrupt in a callback (of a weak reference, of a collected object),
where it is printed and forgotten. What was heard is remembered, and asked for once there is somebody to ask.
Knows no run.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_heard: list[int] = []


@contextmanager
def raised() -> Iterator[None]:
    """Both raise KeyboardInterrupt in here."""

    def on_signal(number: int, frame: FrameType | None) -> NoReturn:
        _heard.append(number)
        raise KeyboardInterrupt

    _heard.clear()
    with _handled(dict.fromkeys(_NUMBERS, on_signal)):
        yield


@contextmanager
def asked(ask: Callable[[str], None]) -> Iterator[None]:
    """The first one in here, or one that was heard before and forgotten, asks with its reason; a second one does what
    it did before."""
    before = {number: signal.getsignal(number) for number in _NUMBERS}

    def on_signal(number: int, frame: FrameType | None) -> None:
        for each in _NUMBERS:
            signal.signal(each, before[each])
        ask(f"stopped by {signal.Signals(number).name}")

    with _handled(dict.fromkeys(_NUMBERS, on_signal)):
        if _heard:
            on_signal(_heard.pop(), None)
        yield


@contextmanager
def _handled(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
