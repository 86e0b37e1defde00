"""The local rollout engine: continuous batching over several policy versions at once.

Invariants: C1, a request is decoded by its own version's weights or not at all, `switch` aside; every accepted
request is answered exactly once, aborted, or named in the error that ended it; a step that raises leaves all others
as they were. Knows no processes, files (but weights) or text. Formula-level parts: `forward`, `attention`, `sampling`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from offbeat.errors import EngineError
from offbeat.ports import Completion, Request, Sampling
from offbeat.rollout.batch import Batch, SharedPrompt, decode_batch, mixed_batch, whole_sequence
from offbeat.rollout.cache import BlockCache
from offbeat.rollout.config import read_shape
from offbeat.rollout.forward import logits, rotation_table
from offbeat.rollout.sampling import draw
from offbeat.rollout.slots import PromptKey, Slots, key_of
from offbeat.rollout.weights import VersionWeights, read_weights


class NonFiniteLogits(EngineError):
    """These requests met logits that are not finite and were dropped; every other request goes on."""

    def __init__(self, request_ids: tuple[int, ...], versions: tuple[int, ...]) -> None:
        self.request_ids, self.versions = request_ids, versions
        super().__init__(
            f"logits are not finite under version {', '.join(map(str, versions))}:"
            f" requests {', '.join(map(str, request_ids))} are dropped"
        )


class Engine:
    """A `Generator` for Llama, Qwen2 and Qwen3 models on the CPU, in float32.

    Responses end with an eos token of the model (kept, with its log-prob; finish_reason "stop") or at
    `max_new_tokens` or `context` tokens (finish_reason "length"). Under temperature 0 the recorded log-probs are
    those of the temperature-1 distribution without cut. The caller sets the number of torch threads; 1 is meant.
    """

    def __init__(self, model_dir: Path, slots: int, context: int, prefill_tokens: int = 4096) -> None:
        """`context` bounds prompt + response in tokens. `prefill_tokens` bounds the prompt tokens one step takes
        up (a longer prompt goes alone). Raises EngineError for an unsupported or unreadable model."""
        self._shape = read_shape(model_dir)
        if slots < 1 or context < 2 or prefill_tokens < 1:
            raise EngineError(f"slots = {slots}, context = {context}: needs at least 1 slot and 2 tokens of context")
        if context > self._shape.max_positions:
            raise EngineError(
                f"context = {context} is more than the model's max_position_embeddings = {self._shape.max_positions}"
            )
        self.slots = slots
        self.context = context
        self._prefill_tokens = prefill_tokens
        self._rotation = rotation_table(self._shape, context)
        self._cache = BlockCache(self._shape, slots, context)
        self._slots = Slots(slots, context)
        self._eos = np.zeros(self._shape.vocab, dtype=np.bool_)
        self._eos[[token for token in self._shape.eos_ids if 0 <= token < self._shape.vocab]] = True
        self._weights: dict[int, VersionWeights] = {}
        self._queue: deque[Request] = deque()
        self._unfinished: set[int] = set()
        self._suspended: set[int] = set()

    # -- versions ----------------------------------------------------------------------------------------------

    def load(self, version: int, weights: Path) -> None:
        """Take up a version from a `model.safetensors`; again the same file's contents changes nothing.

        Raises WeightsError where they are damaged or do not fit, EngineError where the version is loaded with
        other weights.
        """
        fresh = read_weights(weights, self._shape)
        held = self._weights.setdefault(version, fresh)
        if held.digest != fresh.digest:
            raise EngineError(f"version {version} is loaded with other weights; unload it or load another number")

    def unload(self, version: int) -> None:
        """Forget a version. Raises EngineError while a request needs it and for one that is not loaded."""
        self._known(version)
        users = [r.request_id for r in (*self._queue, *self._slots.requests()) if r.version == version]
        if users:
            raise EngineError(
                f"version {version} is needed by {len(users)} requests, first {users[0]}; abort them first"
            )
        del self._weights[version]

    @property
    def versions(self) -> tuple[int, ...]:
        """Loaded versions, ascending."""
        return tuple(sorted(self._weights))

    def _known(self, version: int) -> VersionWeights:
        try:
            return self._weights[version]
        except KeyError:
            raise EngineError(f"version {version} is not loaded; loaded are {list(self.versions)}") from None

    # -- requests ----------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request. Raises EngineError for an unknown version, an id in use, and what does not fit."""
        self._known(request.version)
        name = f"request {request.request_id}"
        if request.request_id in self._unfinished:
            raise EngineError(f"{name} is already here; ids are unique among unfinished requests")
        if request.max_new_tokens < 1:
            raise EngineError(f"{name}: max_new_tokens = {request.max_new_tokens}; ask for at least 1")
        if len(request.prompt_ids) >= self.context:
            raise EngineError(
                f"{name}: a prompt of {len(request.prompt_ids)} tokens leaves no room in a context of {self.context}"
            )
        self._check_tokens(name, request.prompt_ids)
        _check_sampling(name, request.sampling)
        self._queue.append(request)
        self._unfinished.add(request.request_id)

    def abort(self, request_ids: Sequence[int]) -> None:
        """Forget these requests, running or queued; unknown ids are ignored."""
        gone = self._unfinished.intersection(request_ids)
        if not gone:
            return
        self._queue = deque(request for request in self._queue if request.request_id not in gone)
        for slot in [self._slots.slot_of(request_id) for request_id in gone]:
            if slot is not None:
                self._free(slot)
        self._unfinished -= gone
        self._suspended -= gone

    def suspend(self, request_ids: Sequence[int]) -> None:
        """Decode nothing of these requests until `switch` names them; unknown ids are ignored."""
        self._suspended |= self._unfinished.intersection(request_ids)
        for slot in map(self._slots.slot_of, request_ids):
            if slot is not None:
                self._slots.suspended[slot] = True

    def switch(self, request_ids: Sequence[int], version: int, keep_cache: bool) -> None:
        """These requests go on under `version`, queued ones from the start; unknown ids are ignored.

        A running one begins a new span. Its log-probs are those of `version` over the keys and values that are there:
        with `keep_cache` those of the earlier versions, otherwise its own (prompt and tokens are computed again).
        Raises EngineError for a version that is not loaded.
        """
        self._known(version)
        named = self._unfinished.intersection(request_ids)
        self._suspended -= named
        self._queue = deque(
            msgspec.structs.replace(request, version=version) if request.request_id in named else request
            for request in self._queue
        )
        for slot in map(self._slots.slot_of, named):
            if slot is None:
                continue
            if not keep_cache:
                self._cache.release(slot)
            self._slots.switch(slot, version, keep_cache)

    def decoded(self) -> dict[int, int]:
        """Tokens decoded so far of each unfinished request; queued ones count 0."""
        return {**{request.request_id: 0 for request in self._queue}, **self._slots.decoded()}

    def _check_tokens(self, name: str, token_ids: Sequence[int]) -> None:
        if not token_ids:
            raise EngineError(f"{name}: no tokens; give at least one")
        if min(token_ids) < 0 or max(token_ids) >= self._shape.vocab:
            raise EngineError(f"{name}: a token id is outside the vocabulary of {self._shape.vocab}")

    # -- decoding ----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """Move queued requests into free slots (their prompts are computed in the same pass) and sample one token
        for every running request. Returns what finished.

        Raises NonFiniteLogits naming the requests it dropped; nothing else changed then but queue and slots.
        """
        batch = self._next_batch()
        if batch is None:
            return []
        scores = logits(self._shape, self._rotation, batch.rows, self._cache)
        if batch.logits_rows is not None:
            scores = scores.index_select(0, torch.from_numpy(batch.logits_rows))
        drawn = draw(scores, self._slots.row_sampling(batch.slots))
        if not drawn.finite.all():
            raise self._dropped(batch.slots[~drawn.finite].tolist())
        self._slots.advance(batch.slots)
        finished = self._slots.record(batch.slots, drawn, self._eos)
        completions = []
        for slot in finished:
            self._cache.release(slot)
            completions.append(self._slots.complete(slot, self._eos))
        self._unfinished.difference_update(completion.request_id for completion in completions)
        return completions

    def _next_batch(self) -> Batch | None:
        self._admit()
        live = np.flatnonzero(self._slots.running())
        if not live.size:
            return None
        prompts: dict[PromptKey, SharedPrompt] = {}
        budget = self._prefill_tokens
        for slot in live[self._slots.length[live] == 0].tolist():
            key = int(self._slots.version[slot]), self._slots.prefix(slot)
            if key not in prompts:
                if prompts and len(key[1]) > budget:
                    continue
                budget -= len(key[1])
            prompts.setdefault(key, SharedPrompt(*key, [])).slots.append(slot)
            self._cache.reserve(slot, len(key[1]))
        live = live[self._slots.length[live] > 0]
        for slot in live[self._cache.full(live, self._slots.length[live])].tolist():
            self._cache.reserve(slot, int(self._slots.length[slot]) + 1)
        self._cache.tidy()
        if not prompts:
            return decode_batch(self._slots, self._cache, self._weights)
        return mixed_batch(self._slots, self._cache, list(prompts.values()), self._weights)

    def _admit(self) -> None:
        """First come, first served. A prompt that a running slot holds is copied from there; the others count, once
        each, against the budget of prompt tokens."""
        if not self._queue:
            return
        budget, seen, adopted = self._prefill_tokens, set[PromptKey](), []
        suspended = [request for request in self._queue if request.request_id in self._suspended]
        if suspended:
            self._queue = deque(request for request in self._queue if request.request_id not in self._suspended)
        for slot in np.flatnonzero(~self._slots.live).tolist():
            if not self._queue:
                break
            key = key_of(self._queue[0])
            holder = self._slots.holder(key) if len(key[1]) > 1 else None
            if holder is None and key not in seen:
                budget -= len(key[1])
                if seen and budget < 0:
                    break
                seen.add(key)
            self._slots.take(slot, self._queue.popleft())
            if holder is not None:
                adopted.append((slot, holder, len(key[1]) - 1))
        self._queue.extendleft(reversed(suspended))
        if adopted:
            self._cache.adopt(*map(list, zip(*adopted, strict=True)))
            for slot, _, _ in adopted:
                self._slots.adopt(slot)

    def _free(self, slot: int, wipe: bool = False) -> Request:
        self._cache.release(slot, wipe)
        return self._slots.drop(slot)

    def _dropped(self, slots: list[int]) -> NonFiniteLogits:
        gone = [self._free(slot, wipe=True) for slot in slots]
        ids = tuple(request.request_id for request in gone)
        self._unfinished.difference_update(ids)
        return NonFiniteLogits(ids, tuple(sorted({request.version for request in gone})))

    @torch.inference_mode()
    def score(self, version: int, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        """Log-probs [L] (temperature 1, no cut) of a response under a loaded version, by one pass without cache.

        Raises EngineError for an unknown version, token ids or lengths that do not fit, and log-probs not finite.
        """
        weights = self._known(version)
        sequence = [*prompt_ids, *response_ids]
        self._check_tokens("score: prompt", prompt_ids)
        self._check_tokens("score: response", response_ids)
        if len(sequence) > self.context:
            raise EngineError(f"score: {len(sequence)} tokens do not fit in a context of {self.context}")
        rows = whole_sequence(sequence[:-1], len(prompt_ids) - 1, weights)
        every = torch.log_softmax(logits(self._shape, self._rotation, rows, None), 1)
        taken: list[float] = every.gather(1, torch.tensor(response_ids).unsqueeze(1)).squeeze(1).tolist()
        if not all(map(math.isfinite, taken)):
            raise EngineError(f"score: log-probs under version {version} are not finite")
        return taken


def _check_sampling(name: str, sampling: Sampling) -> None:
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise EngineError(f"{name}: temperature = {sampling.temperature}; give 0 (greedy) or more")
    if sampling.top_k < 0:
        raise EngineError(f"{name}: top_k = {sampling.top_k}; give 0 (all) or more")
    if not 0 < sampling.top_p <= 1:
        raise EngineError(f"{name}: top_p = {sampling.top_p}; give a share in (0, 1]")
