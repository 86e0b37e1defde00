"""The local rollout engine: continuous batching over several policy versions at once.

Invariants: C1, a request is decoded by its own version's weights or not at all, `switch` aside; every accepted
request is answered exactly once, aborted, detached, or named in the error that ended it; a step that raises leaves
all others as they were. Knows no processes, files (but weights) or text. Who is in a slot is up to `parking`;
formula-level parts are `forward`, `attention` and `sampling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from offbeat.errors import EngineError, NonFiniteLogits
from offbeat.ports import Completion, Parcel, Request
from offbeat.records import Span
from offbeat.rollout.batch import Batch, SharedPrompt, decode_batch, mixed_batch, whole_sequence
from offbeat.rollout.cache import BlockCache, blocks_for
from offbeat.rollout.checks import check_parcel, check_request, check_tokens
from offbeat.rollout.config import read_shape
from offbeat.rollout.forward import Forward
from offbeat.rollout.kernels import BLOCK, logprobs_of
from offbeat.rollout.parking import Parking
from offbeat.rollout.sampling import draw
from offbeat.rollout.slots import PromptKey, Slots
from offbeat.rollout.versions import VersionReader
from offbeat.rollout.weights import VersionWeights

Floats = NDArray[np.float32]


class Engine:
    """A `Generator` for Llama, Qwen2 and Qwen3 models on the CPU, in float32.

    Responses end with an eos token of the model (kept, with its log-prob; finish_reason "stop") or at
    `max_new_tokens` or `context` tokens (finish_reason "length"). Under temperature 0 the recorded log-probs are
    those of the temperature-1 distribution without cut. The caller sets the number of torch threads; 1 is meant.
    """

    def __init__(
        self,
        model_dir: Path,
        slots: int,
        context: int,
        prefill_tokens: int = 4096,
        kv_tokens: int | None = None,
    ) -> None:
        """`context` bounds prompt + response in tokens. `prefill_tokens` bounds the prompt tokens one step takes
        up (a longer prompt goes alone). `kv_tokens` bounds the tokens of keys and values held in the block cache,
        rounded up to blocks (None: slots x context); what does not fit is parked in plain memory.

        Raises EngineError for an unsupported or unreadable model and where one response might never fit."""
        self._shape = read_shape(model_dir)
        if slots < 1 or context < 2 or prefill_tokens < 1:
            raise EngineError(f"slots = {slots}, context = {context}: needs at least 1 slot and 2 tokens of context")
        if context > self._shape.max_positions:
            raise EngineError(
                f"context = {context} is more than the model's max_position_embeddings = {self._shape.max_positions}"
            )
        if kv_tokens is not None and blocks_for(kv_tokens) < blocks_for(context):
            raise EngineError(
                f"kv_tokens = {kv_tokens} cannot hold one response of context = {context};"
                f" give at least {blocks_for(context) * BLOCK}"
            )
        self.slots = slots
        self.context = context
        self._prefill_tokens = prefill_tokens
        self._forward = Forward(self._shape, context)
        self._cache = BlockCache(self._shape, slots, context, kv_tokens)
        self._slots = Slots(slots, context)
        self._parking = Parking(self._slots, self._cache, prefill_tokens)
        self._eos = np.zeros(self._shape.vocab, dtype=np.bool_)
        self._eos[[token for token in self._shape.eos_ids if 0 <= token < self._shape.vocab]] = True
        self._reader = VersionReader(model_dir, self._shape)
        self._weights: dict[int, VersionWeights] = {}

    # -- versions ----------------------------------------------------------------------------------------------

    def load(self, version: int, weights: Path) -> None:
        """Take up a version from a `model.safetensors`, full weights or an adapter of the model in `model_dir`;
        again the same file's contents changes nothing.

        Raises WeightsError where they are damaged or do not fit, EngineError where the version is loaded with
        other weights.
        """
        fresh = self._reader.read(weights)
        held = self._weights.setdefault(version, fresh)
        if held.digest != fresh.digest:
            raise EngineError(f"version {version} is loaded with other weights; unload it or load another number")

    def unload(self, version: int) -> None:
        """Forget a version. Raises EngineError while a request needs it and for one that is not loaded."""
        self._known(version)
        users = [r.request_id for r in self._parking.requests() if r.version == version]
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
        self._admissible(request)
        check_request(request, self._shape, self.context)
        self._parking.add(Parcel(request), in_front=False)

    def attach(self, parcel: Parcel) -> None:
        """Go on with a request that was detached here or from an engine of the same model, before all that are
        queued (the last attached is the first). Tokens it has count towards its limit.

        Raises EngineError for an unknown version, an id in use, a cache that does not fit the model, and tokens that
        do not fit the context or leave nothing to sample."""
        self._admissible(parcel.request)
        check_parcel(parcel, self._shape, self.context)
        self._parking.add(parcel, in_front=True)

    def detach(self, request_ids: Sequence[int], keep_cache: bool = True) -> list[Parcel]:
        """Take these out, running, queued, suspended or parked, in this order; unknown ids are ignored. Attached
        anywhere they are not suspended. Without `keep_cache` the next engine computes all their tokens again."""
        return self._parking.remove(request_ids, keep_cache)

    def abort(self, request_ids: Sequence[int]) -> None:
        """Forget these requests, running, queued or parked; unknown ids are ignored."""
        self._parking.remove(request_ids, keep_cache=False)

    def suspend(self, request_ids: Sequence[int]) -> None:
        """Decode nothing of these requests until `switch` names them; unknown ids are ignored."""
        self._parking.suspend(request_ids)

    def switch(self, request_ids: Sequence[int], version: int, keep_cache: bool) -> None:
        """These requests go on under `version`, those not begun from the start; unknown ids are ignored.

        A begun one begins a new span. Its log-probs are those of `version` over the keys and values that are there:
        with `keep_cache` those of the earlier versions, otherwise its own (prompt and tokens are computed again).
        Raises EngineError for a version that is not loaded.
        """
        self._known(version)
        self._parking.switch(request_ids, version, keep_cache)

    def decoded(self) -> dict[int, int]:
        """Tokens decoded so far of each unfinished request; those not begun count 0."""
        return self._parking.decoded()

    def sampled(self, request_id: int, start: int = 0) -> tuple[Span, ...]:
        """What an unfinished request has sampled from its token `start` on; empty where there is nothing (yet)."""
        return self._parking.sampled(request_id, start)

    def parked(self) -> tuple[int, ...]:
        """Requests whose keys and values are put aside until there is room, oldest version and request first."""
        return self._parking.parked()

    @property
    def cached_tokens(self) -> int:
        """Tokens of keys and values that the used blocks of the cache have room for."""
        return self._cache.used * BLOCK

    def _admissible(self, request: Request) -> None:
        self._known(request.version)
        if request.request_id in self._parking:
            raise EngineError(f"request {request.request_id} is already here; ids are unique among unfinished requests")

    # -- decoding ----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """Move parked and queued requests into free slots (prompts are computed in the same pass) and sample one
        token for every running request. Returns what finished.

        Raises NonFiniteLogits naming the requests it dropped; nothing else changed then but who is in which slot.
        """
        batch = self._next_batch()
        if batch is None:
            return []
        drawn = draw(self._scores(batch), self._slots.row_sampling(batch.slots))
        if not drawn.finite.all():
            raise self._dropped(batch.slots[~drawn.finite].tolist())
        for prompt in batch.shared:
            others = prompt.slots[1:]
            self._cache.adopt(others, prompt.slots[:1] * len(others), [len(prompt.prompt_ids)] * len(others))
        self._slots.advance(batch.slots)
        finished = self._slots.record(batch.slots, drawn, self._eos)
        return [self._parking.complete(slot, self._eos) for slot in finished]

    def _next_batch(self) -> Batch | None:
        self._parking.fill()
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
        if not prompts:
            return decode_batch(self._slots, self._weights)
        return mixed_batch(self._slots, list(prompts.values()), self._weights)

    def _scores(self, batch: Batch) -> Floats:
        """Logits [A, vocab] of the batch's slots."""
        scores = self._forward.logits(batch.parts, self._cache)
        return scores if batch.logits_rows is None else scores[batch.logits_rows]

    def _dropped(self, slots: list[int]) -> NonFiniteLogits:
        gone = [self._parking.drop(slot) for slot in slots]
        ids = tuple(request.request_id for request in gone)
        return NonFiniteLogits(ids, tuple(sorted({request.version for request in gone})))

    @torch.inference_mode()
    def score(self, version: int, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        """Log-probs [L] (temperature 1, no cut) of a response under a loaded version, by one pass without cache.

        Raises EngineError for an unknown version, token ids or lengths that do not fit, and log-probs not finite.
        """
        weights = self._known(version)
        sequence = [*prompt_ids, *response_ids]
        check_tokens("score: prompt", prompt_ids, self._shape)
        check_tokens("score: response", response_ids, self._shape)
        if len(sequence) > self.context:
            raise EngineError(f"score: {len(sequence)} tokens do not fit in a context of {self.context}")
        cache = BlockCache(self._shape, 1, len(sequence))
        cache.reserve(0, len(sequence))
        scores = self._forward.logits([whole_sequence(sequence[:-1], len(prompt_ids) - 1, weights)], cache)
        taken = np.empty(len(response_ids), dtype=np.float32)
        logprobs_of(scores, np.array(response_ids), taken)
        if not np.isfinite(taken).all():
            raise EngineError(f"score: log-probs under version {version} are not finite")
        return [float(x) for x in taken]
