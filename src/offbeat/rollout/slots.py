"""What each slot is doing, one array per quantity, so that a step touches all slots at once.

Invariant: a live slot with length 0 still owes its *prefix*, the prompt and what was sampled before a switch;
afterwards `length` keys lie in the cache, and the token at position `length` is `last`, sampled but not yet fed. Knows
no model and no weights.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from offbeat.ports import Completion, Parcel, Request
from offbeat.records import Span
from offbeat.rollout.sampling import Draw, RowSampling, seed_word

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
PromptKey = tuple[int, tuple[int, ...]]
"""A version and the prompt ids under it: what two requests must share to share keys and values."""


def key_of(request: Request) -> PromptKey:
    return request.version, request.prompt_ids


class Slots:
    """Arrays [slots]; `tokens` and `logprobs` [slots, context] hold the response so far, `count` tokens of it."""

    def __init__(self, slots: int, context: int) -> None:
        self.live = np.zeros(slots, dtype=np.bool_)
        self.suspended = np.zeros(slots, dtype=np.bool_)
        self.version = np.zeros(slots, dtype=np.int64)
        self.length = np.zeros(slots, dtype=np.int64)
        self.last = np.zeros(slots, dtype=np.int64)
        self.count = np.zeros(slots, dtype=np.int64)
        self._prompt = np.zeros(slots, dtype=np.int64)
        self._limit = np.zeros(slots, dtype=np.int64)
        self._seed = np.zeros(slots, dtype=np.uint64)
        self._temperature = np.ones(slots, dtype=np.float64)
        self._top_k = np.zeros(slots, dtype=np.int64)
        self._top_p = np.ones(slots, dtype=np.float64)
        self._tokens = np.zeros((slots, context), dtype=np.int64)
        self._logprobs = np.zeros((slots, context), dtype=np.float32)
        self._support: dict[int, list[Ints]] = {}
        self._request: dict[int, Request] = {}
        self._earlier: dict[int, list[tuple[int, int]]] = {}
        self._slot_of: dict[int, int] = {}
        self._holders: dict[PromptKey, list[int]] = {}
        self._context = context

    def take(self, slot: int, parcel: Parcel) -> None:
        """Begin or go on with a request in a free slot, whose cache holds the parcel's. It lends its prompt to nobody
        before it has computed it: the parcel does not say whose keys and values it holds."""
        request, ends, count = parcel.request, list[tuple[int, int]](), 0
        for span in parcel.spans:
            end = count + len(span.token_ids)
            self._tokens[slot, count:end] = span.token_ids
            self._logprobs[slot, count:end] = span.behaviour_logprobs
            if span.behaviour_support is not None:
                self._support.setdefault(slot, []).extend(map(np.array, span.behaviour_support))
            ends.append((span.version, end))
            count = end
        if ends and ends[-1][0] == request.version:
            ends.pop()
        if ends:
            self._earlier[slot] = ends
        self.live[slot] = True
        self.version[slot] = request.version
        self.length[slot], self.count[slot] = parcel.cached, count
        self.last[slot] = self._tokens[slot, count - 1] if count else request.prompt_ids[-1]
        self._prompt[slot] = len(request.prompt_ids)
        self._limit[slot] = min(request.max_new_tokens, self._context - len(request.prompt_ids))
        self._seed[slot] = seed_word(request.seed)
        self._temperature[slot] = request.sampling.temperature
        self._top_k[slot], self._top_p[slot] = request.sampling.top_k, request.sampling.top_p
        self._request[slot] = request
        self._slot_of[request.request_id] = slot

    def drop(self, slot: int) -> Request:
        """Free a slot and return what it was doing."""
        self.live[slot] = self.suspended[slot] = False
        self._support.pop(slot, None)
        self._earlier.pop(slot, None)
        request = self._request.pop(slot)
        del self._slot_of[request.request_id]
        self._hold_no_more(slot, request)
        return request

    def _hold_no_more(self, slot: int, request: Request) -> None:
        holders = self._holders.get(key_of(request), [])
        if slot in holders:
            holders.remove(slot)
            if not holders:
                del self._holders[key_of(request)]

    def free(self) -> int | None:
        """A slot that is not live, the lowest."""
        slot = int(self.live.argmin())
        return None if self.live[slot] else slot

    def running(self) -> Bools:
        """Which slots are to be decoded [slots]."""
        return self.live & ~self.suspended

    def prefix(self, slot: int) -> tuple[int, ...]:
        """What must be in the slot's cache before its next token can be sampled."""
        tokens: list[int] = self._tokens[slot, : self.count[slot]].tolist()
        return (*self._request[slot].prompt_ids, *tokens)

    def switch(self, slot: int, version: int, keep_cache: bool) -> None:
        """Go on under another version: a new span begins if tokens were sampled since the last. Without `keep_cache`
        the slot owes its prefix again."""
        request, count = self._request[slot], int(self.count[slot])
        spans = self._earlier.setdefault(slot, [])
        if spans and spans[-1] == (version, count):
            spans.pop()
        elif request.version != version and count > (spans[-1][1] if spans else 0):
            spans.append((request.version, count))
        self._hold_no_more(slot, request)
        self._request[slot] = msgspec.structs.replace(request, version=version)
        self.version[slot] = version
        self.suspended[slot] = False
        if not keep_cache:
            self.length[slot] = 0

    def extent(self, at: Ints) -> Ints:
        """Tokens of prompt and response so far, all of which the next step needs in the cache."""
        total: Ints = self._prompt[at] + self.count[at]
        return total

    def holder(self, key: PromptKey) -> int | None:
        """A running slot whose cache begins with this prompt under this version."""
        holders = self._holders.get(key)
        return holders[-1] if holders else None

    def adopt(self, slot: int) -> None:
        """The slot's prompt but its last token has been copied into its cache; that token is fed next."""
        request = self._request[slot]
        self.length[slot], self.last[slot] = len(request.prompt_ids) - 1, request.prompt_ids[-1]
        self._holders[key_of(request)].append(slot)

    def slot_of(self, request_id: int) -> int | None:
        return self._slot_of.get(request_id)

    def request(self, slot: int) -> Request:
        return self._request[slot]

    def requests(self) -> list[Request]:
        return list(self._request.values())

    def decoded(self) -> dict[int, int]:
        """Response tokens so far by request id."""
        return {request.request_id: int(self.count[slot]) for slot, request in self._request.items()}

    def row_sampling(self, at: Ints) -> RowSampling:
        """How the next tokens of these slots are sampled."""
        return RowSampling(self._temperature[at], self._top_k[at], self._top_p[at], self._seed[at], self.count[at])

    def advance(self, at: Ints) -> None:
        """The tokens fed for these slots are in the cache now: the whole prompt, or the last token."""
        began = at[self.length[at] == 0]
        self.length[at] += 1
        for slot in began.tolist():
            request = self._request[slot]
            self.length[slot] = len(request.prompt_ids) + int(self.count[slot])
            self._holders.setdefault(key_of(request), []).append(slot)

    def record(self, at: Ints, draw: Draw, eos: Bools) -> list[int]:
        """Append the drawn tokens of slots `at` and return the slots that are finished."""
        count = self.count[at]
        self._tokens[at, count] = draw.tokens
        self._logprobs[at, count] = draw.behaviour_logprobs
        self.last[at] = draw.tokens
        self.count[at] = count + 1
        for slot, kept in zip(at.tolist(), draw.support or (), strict=False):
            if kept is not None:
                self._support.setdefault(slot, []).append(kept)
        finished: list[int] = at[eos[draw.tokens] | (count + 1 >= self._limit[at])].tolist()
        return finished

    def complete(self, slot: int, eos: Bools) -> Completion:
        """Free a finished slot and hand its response over."""
        spans = self.spans(slot)
        request = self.drop(slot)
        stopped = eos[self.last[slot]]
        return Completion(request.request_id, slot, spans, "stop" if stopped else "length")

    def spans(self, slot: int, since: int = 0) -> tuple[Span, ...]:
        """The response so far from token `since` on; adjacent spans are of different versions, and none is empty."""
        support, ends = self._support.get(slot), list(self._earlier.get(slot, ()))
        count = int(self.count[slot])
        if count > (ends[-1][1] if ends else 0):
            ends.append((self._request[slot].version, count))
        spans, start = [], since
        for version, end in ends:
            if end <= start:
                continue
            kept = None if support is None else tuple(tuple(ids.tolist()) for ids in support[start:end])
            spans.append(
                Span(
                    version=version,
                    token_ids=tuple(self._tokens[slot, start:end].tolist()),
                    behaviour_logprobs=tuple(self._logprobs[slot, start:end].tolist()),
                    behaviour_support=kept,
                )
            )
            start = end
        return tuple(spans)
