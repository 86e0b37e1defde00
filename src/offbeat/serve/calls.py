"""One response under way as whoever waits for it sees it, and the notices a server gives of calls, versions and lanes.

Invariants: C1, every token of a call was sampled by the version it was given; every log-prob is a finite number.
Anything else ends it as a failure.
Knows no engine and no HTTP. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, TypeAlias

from offbeat.errors import EngineError
from offbeat.ports import Parcel, Request
from offbeat.records import FinishReason, Span


class Piece(NamedTuple):
    """New tokens [L] with their behaviour log-probs [L]; `finish_reason` with the last ones."""

    token_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    finish_reason: FinishReason | None


class CallEnded(NamedTuple):
    """What is recorded of a call. `versions` are those that sampled its tokens, as the engine says; seconds are
    wall-clock. `outcome` is a finish reason, `aborted` (nobody waited any more) or `failed`."""

    request_id: int
    session: str | None
    version: int
    versions: tuple[int, ...]
    lanes: tuple[int, ...]
    prompt_tokens: int
    tokens: int
    outcome: str
    reason: str
    seconds: float
    first_token_seconds: float | None


class VersionChanged(NamedTuple):
    """`what`: held (ready on every lane), gone (let go), or refused (an engine could not take it up, for `reason`)."""

    version: int
    what: str
    reason: str = ""


class LaneLost(NamedTuple):
    lane: int
    reason: str
    moved: int
    """Calls that go on elsewhere."""


Notice: TypeAlias = CallEnded | VersionChanged | LaneLost


class Call:
    """`version` samples all of it; `lanes` are those it was on, the present one last."""

    def __init__(self, request: Request, session: str | None, now: float) -> None:
        self.request = request
        self.session = session
        self.began = now
        self.first_token: float | None = None
        self.lanes: list[int] = []
        self.spans: list[Span] = []
        self.tokens = 0
        self.finish_reason: FinishReason | None = None
        self.failure = ""
        self.satisfied = False
        """Whoever waited has all that was wanted, also where more was sampled, beyond a stop string."""
        self.taken = 0
        """Tokens that belong to the answer."""
        self.settled: Callable[[], None] = lambda: None
        """Called once all of the answer is there, before whoever waits hears the last of it."""
        self._fresh: list[Span] = []
        self._changed = asyncio.Event()

    @property
    def version(self) -> int:
        return self.request.version

    @property
    def over(self) -> bool:
        return self.finish_reason is not None or bool(self.failure)

    def parcel(self) -> Parcel:
        """What another engine needs to go on with it, without keys and values."""
        if not self.spans:
            return Parcel(self.request)
        token_ids = tuple(token for span in self.spans for token in span.token_ids)
        logprobs = tuple(logprob for span in self.spans for logprob in span.behaviour_logprobs)
        supports = [kept for span in self.spans for kept in span.behaviour_support or ()]
        return Parcel(self.request, (Span(self.version, token_ids, logprobs, tuple(supports) or None),))

    def sampled(self, spans: tuple[Span, ...], finish_reason: FinishReason | None, now: float) -> None:
        """The engine has sampled more."""
        if self.over:
            return
        if spans and self.first_token is None:
            self.first_token = now
        self.spans += spans
        self._fresh += spans
        self.tokens += sum(len(span.token_ids) for span in spans)
        broken = [x for span in spans for x in span.behaviour_logprobs if not math.isfinite(x)]
        if broken:
            self.failure = f"the engine sampled a token with log-prob {broken[0]}, which is not a finite number"
        mixed = {span.version for span in spans} - {self.version}
        if mixed:
            self.failure = f"version {min(mixed)} sampled tokens of a call of version {self.version}"
        self.finish_reason = finish_reason
        self._changed.set()

    def failed(self, reason: str) -> None:
        if not self.over:
            self.failure = reason
            self._changed.set()

    async def pieces(self) -> AsyncIterator[Piece]:
        """What is sampled, as it comes, until the end. Raises EngineError where the call failed."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self.failure:
                raise EngineError(self.failure)
            fresh, self._fresh = self._fresh, []
            yield Piece(
                tuple(token for span in fresh for token in span.token_ids),
                tuple(logprob for span in fresh for logprob in span.behaviour_logprobs),
                self.finish_reason,
            )
            if self.finish_reason is not None:
                return

    def ended(self, now: float) -> CallEnded:
        """Its record."""
        outcome = "failed" if self.failure else self.finish_reason or ("stop" if self.satisfied else "aborted")
        return CallEnded(
            request_id=self.request.request_id,
            session=self.session,
            version=self.version,
            versions=tuple(sorted({span.version for span in self.spans})),
            lanes=tuple(self.lanes),
            prompt_tokens=len(self.request.prompt_ids),
            tokens=self.tokens,
            outcome=outcome,
            reason=self.failure,
            seconds=now - self.began,
            first_token_seconds=None if self.first_token is None else self.first_token - self.began,
        )
