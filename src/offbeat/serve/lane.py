"""One engine in a thread of its own, told what to do through a queue, heard through a callback.

Invariants: every request it is given is answered, aborted, or named in the news that the lane is lost; orders are
carried out in the order they were given, so a version is let go after the abort of what needed it. Knows generators
through their port; no HTTP, no text, no sessions.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from offbeat.backends.worker import set_threads
from offbeat.errors import NonFiniteLogits, OffbeatError
from offbeat.ports import Completion, Generator, Parcel
from offbeat.records import FinishReason, Span


class Sampled(NamedTuple):
    """New tokens of a request; `finish_reason` with its last ones."""

    request_id: int
    spans: tuple[Span, ...]
    finish_reason: FinishReason | None


class Refused(NamedTuple):
    """The engine does not take a request, or dropped it."""

    request_id: int
    reason: str


class Held(NamedTuple):
    version: int


class NotHeld(NamedTuple):
    version: int
    reason: str


class Lost(NamedTuple):
    """The engine is gone with all it held; nothing more is heard of this lane."""

    reason: str


News: TypeAlias = Sampled | Refused | Held | NotHeld | Lost


class ServedLane:
    """`say` is called in the lane's thread with what happened since it was last called."""

    def __init__(self, make: Callable[[], Generator], say: Callable[[Sequence[News]], None], threads: int) -> None:
        self._make = make
        self._say = say
        self._threads = threads
        self._orders: queue.SimpleQueue[Callable[[Generator], None]] = queue.SimpleQueue()
        self._told: dict[int, int] = {}
        """Requests with the engine and how many of their tokens have been told."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="lane", daemon=True)
        self._thread.start()

    # -- orders, from any thread -------------------------------------------------------------------------------

    def load(self, version: int, take_up: Callable[[Generator], None]) -> None:
        self._orders.put(partial(self._load, version, take_up))

    def unload(self, version: int) -> None:
        self._orders.put(lambda generator: generator.unload(version))

    def attach(self, parcel: Parcel) -> None:
        """Begin a request, or go on with one that has sampled something elsewhere."""
        self._orders.put(partial(self._attach, parcel))

    def abort(self, request_ids: Sequence[int]) -> None:
        """Forget these; unknown ids are ignored."""
        if request_ids:
            self._orders.put(partial(self._abort, tuple(request_ids)))

    def close(self, seconds: float = 10.0) -> None:
        """End the thread; what it has is forgotten."""
        self._closing = True
        self._orders.put(lambda generator: None)
        self._thread.join(seconds)

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            set_threads(self._threads)
            generator = self._make()
            while not self._closing:
                self._obey(generator)
                if self._told:
                    self._decode(generator)
        except Exception as error:  # an engine of any make may raise anything: its lane is lost, and that is said
            words = str(error) if isinstance(error, OffbeatError) else f"{type(error).__name__}: {error}"
            self._say([Lost(words)])

    def _obey(self, generator: Generator) -> None:
        """Every order there is; wait for one where there is nothing to decode."""
        try:
            while not self._closing:
                self._orders.get(block=not self._told)(generator)
        except queue.Empty:
            pass

    def _load(self, version: int, take_up: Callable[[Generator], None], generator: Generator) -> None:
        try:
            take_up(generator)
        except OffbeatError as error:
            with contextlib.suppress(OffbeatError):
                generator.unload(version)
            self._say([NotHeld(version, str(error))])
        else:
            self._say([Held(version)])

    def _attach(self, parcel: Parcel, generator: Generator) -> None:
        request = parcel.request
        try:
            if parcel.spans:
                generator.attach(parcel)
            else:
                generator.submit(request)
        except OffbeatError as error:
            self._say([Refused(request.request_id, str(error))])
        else:
            self._told[request.request_id] = len(parcel.token_ids)

    def _abort(self, request_ids: tuple[int, ...], generator: Generator) -> None:
        generator.abort(request_ids)
        for request_id in request_ids:
            self._told.pop(request_id, None)

    def _decode(self, generator: Generator) -> None:
        news: list[News] = []
        try:
            done = generator.step()
        except NonFiniteLogits as error:
            done = []
            for request_id in error.request_ids:
                self._told.pop(request_id, None)
                news.append(Refused(request_id, str(error)))
        news += [self._finished(completion) for completion in done]
        for request_id, told in self._told.items():
            spans = generator.sampled(request_id, told)
            if spans:
                self._told[request_id] = told + sum(len(span.token_ids) for span in spans)
                news.append(Sampled(request_id, spans, None))
        if news:
            self._say(news)

    def _finished(self, done: Completion) -> Sampled:
        spans, told = done.spans, self._told.pop(done.request_id)
        rest = []
        for span in spans:
            if told < len(span.token_ids):
                rest.append(Span(span.version, span.token_ids[told:], span.behaviour_logprobs[told:]))
            told = max(0, told - len(span.token_ids))
        return Sampled(done.request_id, tuple(rest), done.finish_reason)
