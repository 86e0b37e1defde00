"""Who is in a slot, who waits, and who is parked because the block cache is full.

Invariants: an unfinished request is in exactly one of slots, queue and parked ones; the blocks that the running
slots need for a step are free before it; the foremost running request is never parked, so one always advances
unless all are suspended. Knows slots and blocks as numbers; no weights, no logits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from offbeat.ports import Completion, Parcel, Request
from offbeat.records import Span, spans_from
from offbeat.rollout.cache import BlockCache, blocks_for
from offbeat.rollout.slots import Bools, PromptKey, Slots, key_of


class Parking:
    """The unfinished requests of an engine. Foremost is the oldest version, in it the request that came first;
    one that was attached counts as older than all that are here.

    A parked request is a `Parcel` with its keys and values in plain memory. It comes back, foremost first, when a
    slot and its blocks are free, before any queued one is admitted.
    """

    def __init__(self, slots: Slots, cache: BlockCache, prefill_tokens: int) -> None:
        self._slots, self._cache, self._prefill_tokens = slots, cache, prefill_tokens
        self._queue: deque[Parcel] = deque()
        self._parked: dict[int, Parcel] = {}
        self._age: dict[int, int] = {}
        self._suspended: set[int] = set()
        self._first, self._next = 0, 0

    # -- what the caller asks ----------------------------------------------------------------------------------

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._age

    def requests(self) -> list[Request]:
        """Every unfinished request."""
        return [*(parcel.request for parcel in self._outside()), *self._slots.requests()]

    def add(self, parcel: Parcel, in_front: bool) -> None:
        """Queue a request whose id is not here."""
        request_id = parcel.request.request_id
        if in_front:
            self._first -= 1
            self._age[request_id] = self._first
            self._queue.appendleft(parcel)
        else:
            self._age[request_id] = self._next
            self._next += 1
            self._queue.append(parcel)

    def remove(self, request_ids: Iterable[int], keep_cache: bool) -> list[Parcel]:
        """Take these out, each once and in this order; unknown ids are ignored."""
        wanted = [request_id for request_id in dict.fromkeys(request_ids) if request_id in self._age]
        if not wanted:
            return []
        gone = set(wanted)
        found = {parcel.request.request_id: parcel for parcel in self._outside() if parcel.request.request_id in gone}
        self._queue = deque(parcel for parcel in self._queue if parcel.request.request_id not in gone)
        for request_id in wanted:
            self._parked.pop(request_id, None)
            if (slot := self._slots.slot_of(request_id)) is not None:
                found[request_id] = self._lift(slot, keep_cache)
            self._forget(request_id)
        return [found[i] if keep_cache else _without_cache(found[i]) for i in wanted]

    def suspend(self, request_ids: Sequence[int]) -> None:
        """Decode nothing of these until `switch` names them."""
        self._suspended |= self._age.keys() & set(request_ids)
        for slot in map(self._slots.slot_of, request_ids):
            if slot is not None:
                self._slots.suspended[slot] = True

    def switch(self, request_ids: Sequence[int], version: int, keep_cache: bool) -> None:
        """These go on under `version`; without `keep_cache` all their tokens are computed again."""
        named = self._age.keys() & set(request_ids)
        self._suspended -= named
        self._queue = deque(
            _under(parcel, version, keep_cache) if parcel.request.request_id in named else parcel
            for parcel in self._queue
        )
        for request_id in named:
            if request_id in self._parked:
                self._parked[request_id] = _under(self._parked[request_id], version, keep_cache)
            if (slot := self._slots.slot_of(request_id)) is not None:
                if not keep_cache:
                    self._cache.release(slot)
                self._slots.switch(slot, version, keep_cache)

    def decoded(self) -> dict[int, int]:
        """Response tokens so far of every unfinished request."""
        begun = {parcel.request.request_id: len(parcel.token_ids) for parcel in self._outside() if parcel.spans}
        return dict.fromkeys(self._age, 0) | begun | self._slots.decoded()

    def sampled(self, request_id: int, start: int) -> tuple[Span, ...]:
        """The tokens of an unfinished request from `start` on."""
        slot = self._slots.slot_of(request_id)
        if slot is not None:
            return self._slots.spans(slot, start)
        for parcel in self._outside():
            if parcel.request.request_id == request_id:
                return spans_from(parcel.spans, start)
        return ()

    def parked(self) -> tuple[int, ...]:
        """Parked requests, foremost first."""
        return tuple(sorted(self._parked, key=lambda i: self._rank(self._parked[i].request)))

    # -- what a step asks --------------------------------------------------------------------------------------

    def complete(self, slot: int, eos: Bools) -> Completion:
        """Free a finished slot and hand its response over."""
        self._cache.release(slot)
        done = self._slots.complete(slot, eos)
        self._forget(done.request_id)
        return done

    def drop(self, slot: int) -> Request:
        """Forget a request whose keys and values are not finite."""
        self._cache.release(slot, wipe=True)
        request = self._slots.drop(slot)
        self._forget(request.request_id)
        return request

    def fill(self) -> None:
        """Park whom the block cache cannot hold through the next step, then take up parked and queued requests."""
        if self._cache.bounded:
            self._make_room()
        if (not self._parked or self._return_parked()) and self._queue:
            self._admit()

    def _make_room(self) -> None:
        short = -self._spare()
        if short <= 0:
            return
        running = self._slots.running()
        foremost_last = self._backmost_first(running)
        for slot in [*self._backmost_first(self._slots.live & ~running), *foremost_last[:-1]]:
            held = int(self._cache.owned[slot])
            short -= blocks_for(int(self._slots.extent(np.array([slot]))[0])) if running[slot] else held
            if held or running[slot]:
                self._park(slot)
            if short <= 0:
                return

    def _return_parked(self) -> bool:
        """Whether none is left parked that might run."""
        for request_id in [i for i in self.parked() if i not in self._suspended]:
            slot = self._slot_for(self._parked[request_id])
            if slot is None:
                return False
            self._seat(slot, self._parked.pop(request_id))
        return True

    def _admit(self) -> None:
        """First come, first served. A prompt that a running slot holds is copied from there; the others count, once
        each, against the budget of prompt tokens."""
        suspended = []
        if self._suspended:
            suspended = [parcel for parcel in self._queue if parcel.request.request_id in self._suspended]
            self._queue = deque(parcel for parcel in self._queue if parcel.request.request_id not in self._suspended)
        budget, seen, adopted = self._prefill_tokens, set[PromptKey](), []
        while self._queue and (slot := self._slot_for(self._queue[0])) is not None:
            parcel = self._queue[0]
            version, prompt = key_of(parcel.request)
            key = (version, (*prompt, *parcel.token_ids)) if parcel.spans else (version, prompt)
            holder = self._slots.holder(key) if not parcel.spans and not parcel.cached and len(prompt) > 1 else None
            if not parcel.cached and holder is None and key not in seen:
                budget -= len(key[1])
                if seen and budget < 0:
                    break
                seen.add(key)
            self._seat(slot, self._queue.popleft())
            if holder is not None:
                adopted.append((slot, holder, len(prompt) - 1))
        self._queue.extendleft(reversed(suspended))
        if adopted:
            self._cache.adopt(*map(list, zip(*adopted, strict=True)))
            for slot, _, _ in adopted:
                self._slots.adopt(slot)

    def _slot_for(self, parcel: Parcel) -> int | None:
        """A free slot, if the blocks of the parcel's next token are free and, while others run, one for growth.
        Where nobody runs for want of room, suspended requests make way."""
        if not self._cache.bounded:
            return self._slots.free()
        idle = not self._slots.running().any()
        needed = blocks_for(len(parcel.request.prompt_ids) + len(parcel.token_ids)) + (not idle)
        while True:
            slot = self._slots.free()
            if slot is not None and needed <= self._spare():
                return slot
            in_the_way = self._backmost_first(self._slots.live) if idle else []
            if not in_the_way:
                return None
            self._park(in_the_way[0])

    # -- moving ------------------------------------------------------------------------------------------------

    def _seat(self, slot: int, parcel: Parcel) -> None:
        if parcel.cache is not None:
            self._cache.restore(slot, parcel.cached, parcel.cache)
        self._slots.take(slot, parcel)

    def _park(self, slot: int) -> None:
        parcel = self._lift(slot, keep_cache=True)
        self._parked[parcel.request.request_id] = parcel

    def _lift(self, slot: int, keep_cache: bool) -> Parcel:
        """Free a slot and return what is needed to go on."""
        request, spans, cached = self._slots.request(slot), self._slots.spans(slot), int(self._slots.length[slot])
        cache = self._cache.read(slot, cached) if keep_cache and cached else None
        self._cache.release(slot)
        self._slots.drop(slot)
        return Parcel(request, spans, cached if cache is not None else 0, cache)

    def _forget(self, request_id: int) -> None:
        del self._age[request_id]
        self._suspended.discard(request_id)

    def _spare(self) -> int:
        """Free blocks that no running slot needs for the next step; negative where they need more."""
        at = np.flatnonzero(self._slots.running())
        return self._cache.free - int(self._cache.missing(at, self._slots.extent(at)).sum())

    def _backmost_first(self, which: Bools) -> list[int]:
        slots: list[int] = np.flatnonzero(which).tolist()
        return sorted(slots, key=lambda slot: self._rank(self._slots.request(slot)), reverse=True)

    def _rank(self, request: Request) -> tuple[int, int]:
        return request.version, self._age[request.request_id]

    def _outside(self) -> list[Parcel]:
        return [*self._queue, *self._parked.values()]


def _without_cache(parcel: Parcel) -> Parcel:
    return msgspec.structs.replace(parcel, cached=0, cache=None)


def _under(parcel: Parcel, version: int, keep_cache: bool) -> Parcel:
    moved = msgspec.structs.replace(parcel, request=msgspec.structs.replace(parcel.request, version=version))
    return moved if keep_cache else _without_cache(moved)
