"""The desk between calls and engines: which version answers, on which lane, and what becomes of it.

Invariants: a call that began is ended, recorded and its slot freed, whatever its client, its lane or its version does;
a call that changes lanes goes on under its version with what it has (C1). Lives in one event loop; decisions about
versions are `flow.pins`, engines are `lane`. Knows no HTTP and no text.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NamedTuple

from offbeat.errors import EngineError, OffbeatError
from offbeat.flow.pins import Load, PinError, Pins
from offbeat.ports import Generator, Request, Sampling
from offbeat.serve.calls import Call, LaneLost, Notice, VersionChanged
from offbeat.serve.lane import Held, Lost, News, NotHeld, Refused, Sampled, ServedLane
from offbeat.serve.options import ServeOptions
from offbeat.serve.sources import Source

LOSSES = 3
"""Engines lost in a row, none of them having answered anything, after which a lane is given up."""
TAKE_UP_SECONDS = 120.0
"""How long a call waits for a version that it asked for to be taken up."""


class Busy(OffbeatError):
    """There are as many calls as there may be."""


class Order(NamedTuple):
    """Prompt ids [P] to be gone on with for at most `max_new_tokens` tokens."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int
    sampling: Sampling


class Hub:
    """`observe` is told of everything that ends or changes. Use it as an asynchronous context manager."""

    def __init__(
        self,
        source: Source,
        options: ServeOptions,
        make: Callable[[], Generator],
        observe: Callable[[Notice], None] = lambda notice: None,
    ) -> None:
        self.source = source
        self.options = options
        self.pins = Pins(options.lease_seconds, options.max_versions, options.max_sessions, options.keep_versions)
        self.calls: dict[int, Call] = {}
        self.dead = ""
        """Why nothing can be answered any more."""
        self._make = make
        self._observe = observe
        self._lanes: dict[int, ServedLane] = {}
        self._holds: dict[int, set[int]] = {}
        self._losses: dict[int, int] = {}
        self._last_id = 0
        self._changed = asyncio.Condition()
        self._refused: dict[int, str] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Hub:
        self._loop = asyncio.get_running_loop()
        for lane in range(self.options.lanes):
            self._start(lane)
        await self._poll()
        self._background.add(asyncio.create_task(self._keep_up()))
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._background:
            task.cancel()
        for call in self.calls.values():
            call.failed("the server is shutting down")
        for lane in self._lanes.values():
            await asyncio.to_thread(lane.close)

    # -- versions ----------------------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(self.options.poll_seconds)
            await self._poll()

    async def _poll(self) -> None:
        with contextlib.suppress(OffbeatError, OSError):  # a run that is being written may be unreadable for a moment
            there = await asyncio.to_thread(self.source.poll)
            for version in self.pins.published - there.keys():
                self.pins.withdraw(version)
            for version in there.keys() - self.pins.published - self._refused.keys():
                self.pins.publish(version)
        self._decide()

    def _decide(self) -> None:
        for command in self.pins.decide(self._loop.time()):
            for number, lane in self._lanes.items():
                if isinstance(command, Load):
                    self._load(lane, command.version)
                else:
                    self._let_go(number, command.version)
            if not isinstance(command, Load):
                self._observe(VersionChanged(command.version, "gone"))

    def _let_go(self, number: int, version: int) -> None:
        """A lane that was begun anew may not hold it (yet)."""
        if version in self._holds[number]:
            self._holds[number].discard(version)
            self._lanes[number].unload(version)

    def _load(self, lane: ServedLane, version: int) -> None:
        lane.load(version, lambda generator: self.source.take_up(version, generator))

    async def have(self, version: int) -> None:
        """Wait until a version that was asked for by its number is held. Raises PinError."""
        if self.pins.ask(version, self._loop.time()):
            return
        self._decide()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TAKE_UP_SECONDS), self._changed:
                await self._changed.wait_for(lambda: version in self.pins.held or version not in self.pins.published)
        if version not in self.pins.held:
            reason = self._refused.get(version, f"not taken up within {TAKE_UP_SECONDS:.0f} s")
            raise PinError("unknown-version", f"version {version} cannot be served: {reason}")

    async def ready(self) -> None:
        """Wait for the first version. Raises EngineError where none can be had."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: bool(self.pins.held or self.dead or not self.pins.published | self.pins.loading)
            )
        if not self.pins.held:
            refused = "; ".join(self._refused.values()) or f"{self.source.name} has no version whose weights are there"
            raise EngineError(self.dead or refused)

    # -- calls -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def call(self, orders: Sequence[Order], session: str | None, version: int | None) -> Iterator[list[Call]]:
        """Begin calls of one version and end them, whatever happens: what nobody waits for any more is aborted.

        Raises Busy, PinError, and EngineError where there is no engine left.
        """
        if self.dead:
            raise EngineError(self.dead)
        if len(self.calls) + len(orders) > self.options.max_calls:
            raise Busy(f"{len(self.calls)} of {self.options.max_calls} calls are under way; try again")
        now = self._loop.time()
        chosen = self.pins.begin(session, version, now)
        begun: list[Call] = []
        try:
            for order in orders:
                begun.append(self._begin(order, session, chosen, now))
            yield begun
        finally:
            self._end(begun)
            self.pins.end(session, chosen, self._loop.time())

    def _end(self, calls: Sequence[Call]) -> None:
        for number, lane in self._lanes.items():
            lane.abort(
                [c.request.request_id for c in calls if c.finish_reason is None and c.lanes and c.lanes[-1] == number]
            )
        for call in calls:
            del self.calls[call.request.request_id]
            self._observe(call.ended(self._loop.time()))

    def _begin(self, order: Order, session: str | None, version: int, now: float) -> Call:
        self._last_id += 1
        request = Request(self._last_id, version, order.prompt_ids, order.seed, order.max_new_tokens, order.sampling)
        call = Call(request, session, now)
        self.calls[request.request_id] = call
        self._place(call)
        return call

    def _place(self, call: Call, otherwise: int | None = None) -> None:
        """Give a call to the least busy lane that holds its version, or to the lane `otherwise`."""
        busy = dict.fromkeys(self._lanes, 0)
        for other in self.calls.values():
            if other.lanes and not other.over and other.lanes[-1] in busy:
                busy[other.lanes[-1]] += 1
        able = [number for number in self._lanes if call.version in self._holds[number] and number != otherwise]
        number = min(able, key=lambda number: busy[number], default=otherwise)
        if number is None:
            call.failed(self.dead or f"no engine holds version {call.version}")
            return
        call.lanes.append(number)
        self._lanes[number].attach(call.parcel())

    # -- what lanes say ----------------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        def say(news: Sequence[News]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is interested
                self._loop.call_soon_threadsafe(self._heard, number, lane, news)

        lane = ServedLane(self._make, say, self.options.threads)
        self._lanes[number] = lane
        self._holds[number] = set()
        for version in sorted(self.pins.held | self.pins.loading):
            self._load(lane, version)

    def _heard(self, number: int, lane: ServedLane, news: Sequence[News]) -> None:
        if self._lanes.get(number) is not lane:  # what was replaced is not heard
            return
        now = self._loop.time()
        for item in news:
            match item:
                case Sampled():
                    self._sampled(number, item, now)
                case Refused():
                    if item.request_id in self.calls:
                        self.calls[item.request_id].failed(item.reason)
                case Held():
                    self._holds[number].add(item.version)
                    if item.version not in self.pins.held | self.pins.loading:  # let go while it was on its way
                        self._let_go(number, item.version)
                    self._settled(item.version)
                case NotHeld():
                    self._not_held(item)
                case Lost():
                    self._lost(number, item.reason)

    def _sampled(self, number: int, item: Sampled, now: float) -> None:
        call = self.calls.get(item.request_id)
        if call is not None:
            call.sampled(item.spans, item.finish_reason, now)
            if item.finish_reason is not None:
                self._losses[number] = 0

    def _settled(self, version: int) -> None:
        """A version is ready once every lane holds it."""
        holding = [version in holds for holds in self._holds.values()]
        if version in self.pins.loading and holding and all(holding):
            self.pins.ready(version)
            self._observe(VersionChanged(version, "held"))
            self._decide()
            self._notify()

    def _not_held(self, item: NotHeld) -> None:
        if item.version not in self.pins.loading:
            return
        self._refused[item.version] = item.reason
        self.pins.failed(item.version)
        for number in self._holds:
            self._let_go(number, item.version)
        self._observe(VersionChanged(item.version, "refused", item.reason))
        self._decide()
        self._notify()

    def _lost(self, number: int, reason: str) -> None:
        """Begin a new engine; the calls of the old one go on elsewhere, or there once it has their versions."""
        del self._lanes[number], self._holds[number]
        self._losses[number] = self._losses.get(number, 0) + 1
        again = self._losses[number] < LOSSES
        if again:
            self._start(number)
        elif not self._lanes:
            self.dead = reason
            self._notify()
        orphans = [call for call in self.calls.values() if call.lanes and call.lanes[-1] == number and not call.over]
        self._observe(LaneLost(number, reason, len(orphans)))
        for call in orphans:
            self._place(call, number if again else None)
        for version in list(self.pins.loading):
            self._settled(version)

    def _notify(self) -> None:
        async def tell() -> None:
            async with self._changed:
                self._changed.notify_all()

        task = self._loop.create_task(tell())
        self._background.add(task)
        task.add_done_callback(self._background.discard)


@contextlib.asynccontextmanager
async def opened(hub: Hub) -> AsyncIterator[Hub]:
    """A hub that has its first version."""
    async with hub:
        await hub.ready()
        yield hub
