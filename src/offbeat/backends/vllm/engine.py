"""A `Generator` over one vLLM engine in this process.

Invariants: C1, a request is decoded by its own version or not at all; every accepted request is answered exactly
once, aborted, detached, or named in the error that ended it. vLLM never holds more requests than there are slots, so
who waits is decided here. What is sampled, and its log-prob, is `sampler`'s; what a version is, `full_weights`' or
`adapters`'. Keys and values never leave vLLM: a request that moves is computed again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from offbeat.backends.vllm.adapters import Adapters
from offbeat.backends.vllm.full_weights import FullWeights, model_runner
from offbeat.backends.vllm.held import Held
from offbeat.backends.vllm.launch import BLOCK, blocks_for, launch
from offbeat.errors import EngineError, NonFiniteLogits
from offbeat.ports import Completion, Parcel, Request
from offbeat.records import Span, spans_from
from offbeat.rollout.checks import check_parcel, check_request, check_tokens
from offbeat.rollout.config import ModelShape, read_shape


class Versions(Protocol):
    """What a version is to this engine: weights in place, or an adapter."""

    limit: int

    @property
    def versions(self) -> tuple[int, ...]: ...

    def load(self, version: int, weights: Path) -> None: ...

    def unload(self, version: int) -> None: ...

    def adapter(self, version: int) -> Any: ...


class VllmEngine:
    """A `Generator` for what the local engine takes, too, so that either can do what the other did.

    Responses end as the local engine's do. In float32 both give the same tokens for the same seed, up to rounding.
    """

    def __init__(
        self,
        model_dir: Path,
        slots: int,
        context: int,
        kv_tokens: int | None = None,
        dtype: str = "float32",
        lora: tuple[int, int] = (0, 0),
    ) -> None:
        """`lora`: (versions at once, largest rank) where versions are adapters of the model in `model_dir`; (0, 0)
        where a version is all weights. `kv_tokens` bounds keys and values; what does not fit is computed again later.

        Raises EngineError for a model that it or vLLM does not take."""
        self._shape: ModelShape = read_shape(model_dir)
        if slots < 1 or context < 2:
            raise EngineError(f"slots = {slots}, context = {context}: needs at least 1 slot and 2 tokens of context")
        self.slots = slots
        self.context = context
        one_more = slots + 1  # a canary is scored while every slot is in use
        room = one_more * blocks_for(context) * BLOCK if kv_tokens is None else kv_tokens + blocks_for(context) * BLOCK
        self._llm = launch(model_dir, self._shape, one_more, context, room, dtype, lora)
        self._with_vllm: dict[str, Held] = {}
        from offbeat.backends.vllm.sampler import RecordingSampler

        runner = model_runner(self._llm)
        self._sampler = RecordingSampler(runner, self._with_vllm)
        runner.sampler = self._sampler
        self._versions: Versions
        if lora[0]:
            self._versions = Adapters(self._llm, self._shape, model_dir, lora[0])
        else:
            self._versions = FullWeights(self._llm, self._shape)
        self._held: dict[int, Held] = {}
        self._waiting: deque[Held] = deque()
        self._free_slots = list(range(slots))
        self._ended: list[Completion] = []
        self._dropped: list[Request] = []
        self._serial = 0

    # -- versions ----------------------------------------------------------------------------------------------

    def load(self, version: int, weights: Path) -> None:
        """Take up a version; again the same file's contents changes nothing.

        Raises WeightsError where the file is damaged or does not fit, EngineError where there is no room for another
        version or this one is loaded with other weights.
        """
        self._versions.load(version, weights)

    def unload(self, version: int) -> None:
        """Forget a version. Raises EngineError while a request needs it and for one that is not loaded."""
        self._known(version)
        users = [held.request.request_id for held in self._held.values() if held.request.version == version]
        if users:
            raise EngineError(
                f"version {version} is needed by {len(users)} requests, first {users[0]}; abort them first"
            )
        self._versions.unload(version)

    @property
    def versions(self) -> tuple[int, ...]:
        """Loaded versions, ascending."""
        return tuple(sorted(self._versions.versions))

    def _known(self, version: int) -> None:
        if version not in self._versions.versions:
            raise EngineError(f"version {version} is not loaded; loaded are {list(self.versions)}")

    # -- requests ----------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request. Raises EngineError for an unknown version, an id in use, and what does not fit."""
        self._admissible(request)
        check_request(request, self._shape, self.context)
        self._waiting.append(self._take(Parcel(request)))

    def attach(self, parcel: Parcel) -> None:
        """Go on with a request, before all that are queued. A cache is checked and left unused: vLLM computes the
        tokens again. Raises EngineError as the local engine does."""
        self._admissible(parcel.request)
        check_parcel(parcel, self._shape, self.context)
        self._waiting.appendleft(self._take(parcel))

    def detach(self, request_ids: Sequence[int], keep_cache: bool = True) -> list[Parcel]:
        """Take these out, in this order; unknown ids are ignored. Their keys and values always stay behind."""
        return [held.parcel() for held in self._remove(request_ids)]

    def abort(self, request_ids: Sequence[int]) -> None:
        """Forget these requests, running or queued, and answers of them not fetched yet; unknown ids are ignored."""
        self._remove(request_ids)
        gone = set(request_ids)
        self._ended = [done for done in self._ended if done.request_id not in gone]

    def suspend(self, request_ids: Sequence[int]) -> None:
        """Decode nothing of these until `switch` names them. Their keys and values are let go of."""
        for held in self._here(request_ids):
            self._withdraw(held)
            held.suspended = True

    def switch(self, request_ids: Sequence[int], version: int, keep_cache: bool) -> None:
        """These requests go on under `version`, their tokens computed again under it; unknown ids are ignored.

        Raises EngineError for a version that is not loaded and with `keep_cache`: vLLM's keys and values are of the
        version that computed them.
        """
        self._known(version)
        if keep_cache:
            raise EngineError("vLLM cannot go on under another version over the keys and values there are")
        chosen = self._here(request_ids)
        for held in reversed(chosen):
            self._withdraw(held)
            held.switch(version)
            held.suspended = False
            self._waiting.appendleft(held)

    def decoded(self) -> dict[int, int]:
        """Tokens decoded so far of each unfinished request; those not begun count 0."""
        return {request_id: held.count for request_id, held in self._held.items()}

    def sampled(self, request_id: int, start: int = 0) -> tuple[Span, ...]:
        """What an unfinished request has sampled from its token `start` on; empty where there is nothing (yet)."""
        held = self._held.get(request_id)
        return () if held is None else spans_from(held.all_spans(), start)

    def parked(self) -> tuple[int, ...]:
        """None: what vLLM has no room for it computes again, and counts as running meanwhile."""
        return ()

    @property
    def cached_tokens(self) -> int:
        """Tokens that the blocks in use have room for; what is only remembered for later prompts does not count."""
        pool = self._llm.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        return int(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()) * BLOCK

    def _admissible(self, request: Request) -> None:
        self._known(request.version)
        if request.request_id in self._held:
            raise EngineError(f"request {request.request_id} is already here; ids are unique among unfinished requests")

    def _here(self, request_ids: Sequence[int]) -> list[Held]:
        return [self._held[request_id] for request_id in request_ids if request_id in self._held]

    def _take(self, parcel: Parcel) -> Held:
        held = self._held[parcel.request.request_id] = Held.of(parcel, self.context)
        return held

    def _remove(self, request_ids: Sequence[int]) -> list[Held]:
        gone = self._here(request_ids)
        for held in gone:
            self._withdraw(held)
            self._forget(held)
        return gone

    def _withdraw(self, held: Held) -> None:
        """Out of vLLM, or out of the queue."""
        if held.name:
            self._llm.abort_request([held.name], internal=True)
            del self._with_vllm[held.name]
            held.name = ""
        elif held in self._waiting:
            self._waiting.remove(held)
        if held.slot is not None:
            heapq.heappush(self._free_slots, held.slot)
            held.slot = None

    def _forget(self, held: Held) -> None:
        del self._held[held.request.request_id]

    # -- decoding ----------------------------------------------------------------------------------------------

    def step(self) -> list[Completion]:
        """Give vLLM what there are slots for and have it decode a token of every running request; what finished.

        Raises NonFiniteLogits naming the requests it dropped; the others are as they were, one token on.
        """
        while self._waiting and self._free_slots:
            held = self._waiting.popleft()
            held.slot = heapq.heappop(self._free_slots)
            self._hand_over(held)
        if self._with_vllm:
            self._advance()
        if self._dropped:
            dropped, self._dropped = self._dropped, []
            versions = tuple(sorted({request.version for request in dropped}))
            raise NonFiniteLogits(tuple(request.request_id for request in dropped), versions)
        ended, self._ended = self._ended, []
        return ended

    def _hand_over(self, held: Held) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._serial += 1
        wanted = SamplingParams(
            max_tokens=held.limit - held.count, ignore_eos=True, detokenize=False,
            stop_token_ids=[] if held.forced else sorted(self._shape.eos_ids),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        prompt = {"prompt_token_ids": [*held.request.prompt_ids, *held.response]}
        adapter = self._versions.adapter(held.request.version)
        held.name = self._llm.add_request(str(self._serial), prompt, wanted, lora_request=adapter)
        self._with_vllm[held.name] = held

    def _advance(self) -> None:
        """One step of vLLM; what ended or was dropped meanwhile is kept for the caller of `step`."""
        self._llm.step()
        for held in self._sampler.take_broken():
            self._withdraw(held)
            if not held.forced:
                self._forget(held)
                self._dropped.append(held.request)
        for held in [held for held in self._with_vllm.values() if self._is_done(held)]:
            del self._with_vllm[held.name]
            held.name = ""
            if not held.forced:
                self._forget(held)
                self._ended.append(held.completion(self._shape.eos_ids))
                heapq.heappush(self._free_slots, self._ended[-1].slot)

    def _is_done(self, held: Held) -> bool:
        ended = bool(held.tokens) and not held.forced and held.tokens[-1] in self._shape.eos_ids
        return ended or held.count >= held.limit

    def score(self, version: int, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        """Log-probs [L] (temperature 1, no cut) of a response under a loaded version, decoded token by token beside
        what runs: the path that samples is the path that is measured.

        Raises EngineError for an unknown version, token ids or lengths that do not fit, and log-probs not finite.
        """
        self._known(version)
        check_tokens("score: prompt", prompt_ids, self._shape)
        check_tokens("score: response", response_ids, self._shape)
        length = len(prompt_ids) + len(response_ids)
        if length > self.context:
            raise EngineError(f"score: {length} tokens do not fit in a context of {self.context}")
        request = Request(0, version, tuple(prompt_ids), 0, len(response_ids))
        held = Held(request, limit=len(response_ids), forced=tuple(response_ids))
        self._hand_over(held)
        while held.name:
            self._advance()
        if held.count < held.limit:
            raise EngineError(f"score: log-probs under version {version} are not finite")
        return held.logprobs
