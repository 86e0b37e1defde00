"""What the engine refuses before it takes anything up, each with one line (EngineError).

Invariant: a request that passes can be sampled to its end, a parcel that passes can be gone on with. Knows the
model's shape and the context; not what is loaded, running or queued.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from offbeat.errors import EngineError
from offbeat.ports import Parcel, Request, Sampling
from offbeat.records import LEAST_TEMPERATURE
from offbeat.rollout.config import ModelShape


def check_request(request: Request, shape: ModelShape, context: int) -> None:
    """Raises EngineError for token ids, lengths and sampling settings that do not fit."""
    name = f"request {request.request_id}"
    if request.max_new_tokens < 1:
        raise EngineError(f"{name}: max_new_tokens = {request.max_new_tokens}; ask for at least 1")
    if len(request.prompt_ids) >= context:
        raise EngineError(
            f"{name}: a prompt of {len(request.prompt_ids)} tokens leaves no room in a context of {context}"
        )
    check_tokens(name, request.prompt_ids, shape)
    _check_sampling(name, request.sampling)


def check_tokens(name: str, token_ids: Sequence[int], shape: ModelShape) -> None:
    """Raises EngineError for no tokens at all and for ids outside the vocabulary."""
    if not token_ids:
        raise EngineError(f"{name}: no tokens; give at least one")
    if min(token_ids) < 0 or max(token_ids) >= shape.vocab:
        raise EngineError(f"{name}: a token id is outside the vocabulary of {shape.vocab}")


def check_parcel(parcel: Parcel, shape: ModelShape, context: int) -> None:
    """Raises EngineError for a request, spans or a cache that do not fit, and where nothing is left to sample."""
    request, response = parcel.request, parcel.token_ids
    check_request(request, shape, context)
    name = f"request {request.request_id}"
    if response:
        check_tokens(f"{name}: response", response, shape)
    known = len(request.prompt_ids) + len(response)
    if known >= context or len(response) >= request.max_new_tokens or shape.eos_ids.intersection(response):
        raise EngineError(
            f"{name}: after {len(response)} of {request.max_new_tokens} tokens, {known} with the prompt in a context"
            f" of {context}, nothing is left to sample"
        )
    _check_spans(name, parcel, _cuts(request.sampling, shape.vocab))
    if parcel.cache is None:
        if parcel.cached:
            raise EngineError(f"{name}: {parcel.cached} tokens are said to be cached, but there is no cache")
        return
    size = 2 * shape.layers * parcel.cached * shape.kv_heads * shape.head_dim * 4
    if not 0 < parcel.cached == known - 1 or len(parcel.cache) != size:
        raise EngineError(
            f"{name}: a cache of {len(parcel.cache)} bytes for {parcel.cached} of {known} tokens does not fit the"
            f" model; all tokens but the last are to be in it, {size} bytes for {parcel.cached}"
        )


def _check_spans(name: str, parcel: Parcel, cuts: bool) -> None:
    for span in parcel.spans:
        support = span.behaviour_support
        if len(span.token_ids) != len(span.behaviour_logprobs) or not span.token_ids:
            raise EngineError(
                f"{name}: a span of {len(span.token_ids)} tokens, {len(span.behaviour_logprobs)} log-probs"
            )
        if (support is not None) != cuts or (support is not None and len(support) != len(span.token_ids)):
            raise EngineError(f"{name}: the spans' supports do not fit its sampling settings")


def _cuts(sampling: Sampling, vocab: int) -> bool:
    """Whether `sampling.draw` gives supports."""
    return sampling.temperature > 0 and (0 < sampling.top_k < vocab or sampling.top_p < 1)


def _check_sampling(name: str, sampling: Sampling) -> None:
    if sampling.temperature != 0 and not LEAST_TEMPERATURE <= sampling.temperature < math.inf:
        raise EngineError(
            f"{name}: temperature = {sampling.temperature}; give 0 (greedy) or at least {LEAST_TEMPERATURE}"
        )
    if sampling.top_k < 0:
        raise EngineError(f"{name}: top_k = {sampling.top_k}; give 0 (all) or more")
    if not 0 < sampling.top_p <= 1:
        raise EngineError(f"{name}: top_p = {sampling.top_p}; give a share in (0, 1]")
