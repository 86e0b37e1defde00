"""An unfinished request of a vLLM engine: what was sampled so far, by which version, and where it stands.

Invariant: tokens are appended in order of position, each with the log-prob of the version that drew it, whatever vLLM
recomputes meanwhile. Knows no vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from offbeat.ports import Completion, Parcel, Request
from offbeat.records import FinishReason, Span


@dataclass(slots=True)
class Held:
    """`name` is vLLM's name of it while it is with vLLM, `slot` its own from its first token on. `forced` are tokens
    to be taken, not drawn: their log-probs are what is asked for."""

    request: Request
    limit: int
    spans: list[Span] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    support: list[tuple[int, ...]] = field(default_factory=list)
    name: str = ""
    slot: int | None = None
    suspended: bool = False
    forced: tuple[int, ...] = ()

    @classmethod
    def of(cls, parcel: Parcel, context: int) -> Held:
        """A request as its parcel has it; `context` bounds prompt + response."""
        request, spans = parcel.request, list(parcel.spans)
        held = cls(request, min(request.max_new_tokens, context - len(request.prompt_ids)), spans)
        if spans and spans[-1].version == request.version:
            last = spans.pop()
            held.tokens, held.logprobs = list(last.token_ids), list(last.behaviour_logprobs)
            held.support = list(last.behaviour_support or ())
        return held

    @property
    def response(self) -> list[int]:
        """All tokens sampled so far."""
        return [token for span in self.spans for token in span.token_ids] + self.tokens

    @property
    def count(self) -> int:
        return sum(len(span.token_ids) for span in self.spans) + len(self.tokens)

    def append(self, token: int, logprob: float, support: tuple[int, ...] | None) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if support is not None:
            self.support.append(support)

    def switch(self, version: int) -> None:
        """Go on under another version: a new span where tokens were sampled."""
        if version == self.request.version:
            return
        self.spans = list(self.all_spans())
        self.tokens, self.logprobs, self.support = [], [], []
        self.request = msgspec.structs.replace(self.request, version=version)

    def all_spans(self) -> tuple[Span, ...]:
        if not self.tokens:
            return tuple(self.spans)
        support = tuple(self.support) if self.support else None
        own = Span(self.request.version, tuple(self.tokens), tuple(self.logprobs), support)
        return (*self.spans, own)

    def parcel(self) -> Parcel:
        """To go on elsewhere; its keys and values stay behind."""
        return Parcel(self.request, self.all_spans())

    def completion(self, eos: frozenset[int]) -> Completion:
        assert self.slot is not None
        reason: FinishReason = "stop" if self.response[-1] in eos else "length"
        return Completion(self.request.request_id, self.slot, self.all_spans(), reason)
