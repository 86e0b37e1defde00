"""The engine computes what `transformers` computes: logits, greedy tokens and recorded behaviour log-probs."""

from __future__ import annotations

import math

import pytest
import torch

from offbeat.ports import Completion, Request, Sampling
from offbeat.rollout.batch import whole_sequence
from offbeat.rollout.cache import BlockCache
from offbeat.rollout.config import read_shape
from offbeat.rollout.engine import Engine
from offbeat.rollout.forward import Forward
from offbeat.rollout.weights import read_weights
from tests.rollout.tiny import EOS, FAMILIES, VOCAB, built, oracle_distribution, oracle_logits, weights

CLOSE = 1e-4


def engine_with(family: str, versions: int, slots: int = 5, context: int = 150) -> Engine:
    engine = Engine(built(family)[1], slots=slots, context=context)
    for version in range(versions):
        engine.load(version, weights(family, version))
    return engine


def run(engine: Engine, requests: list[Request]) -> dict[int, Completion]:
    for request in requests:
        engine.submit(request)
    done: dict[int, Completion] = {}
    while engine.decoded():
        done |= {completion.request_id: completion for completion in engine.step()}
    return done


def prompt(length: int, salt: int) -> tuple[int, ...]:
    return tuple((11 * salt + 7 * i + i * i) % VOCAB for i in range(length))


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_logits(family: str) -> None:
    model, directory = built(family)
    shape = read_shape(directory)
    tokens = prompt(140, 1)
    cache = BlockCache(shape, 1, 150)
    cache.reserve(0, 140)
    ours = Forward(shape, 150).logits([whole_sequence(tokens, 0, read_weights(weights(family), shape))], cache)
    torch.testing.assert_close(torch.from_numpy(ours), oracle_logits(model, tokens), rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_decoded_logprobs_with_several_versions_side_by_side(family: str) -> None:
    """Every kind of cut, prompts across block borders, shared prompts, responses refilled at different times."""
    cuts = [Sampling(), Sampling(0.7), Sampling(1.3, 5), Sampling(0.8, 0, 0.7), Sampling(1.0, 9, 0.9), Sampling(0.0)]
    requests = [
        Request(
            i, i % 3, prompt((1, 2, 31, 32, 33, 70)[i // 6], i // 6), 50 + i, 1 + i * 17 % 79, cuts[(i + i // 6) % 6]
        )
        for i in range(36)
    ]
    engine = engine_with(family, 3)
    for request_id, done in run(engine, requests).items():
        request, span = requests[request_id], done.span
        model = built(family, request.version)[0]
        table = oracle_logits(model, request.prompt_ids + span.token_ids)[len(request.prompt_ids) - 1 : -1]
        scored = engine.score(request.version, request.prompt_ids, span.token_ids)
        for i, token in enumerate(span.token_ids):
            expected = oracle_distribution(table[i].tolist(), request.sampling)
            assert span.behaviour_logprobs[i] == pytest.approx(math.log(expected[token]), abs=CLOSE)
            assert scored[i] == pytest.approx(float(table[i].log_softmax(0)[token]), abs=CLOSE)
            if span.behaviour_support is not None:
                assert span.behaviour_support[i] == tuple(sorted(expected))
        if request.sampling.temperature == 0:
            assert span.token_ids == tuple(table.argmax(1).tolist())
        assert (span.behaviour_support is not None) == (request.sampling.top_k > 0 or request.sampling.top_p < 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_that_of_transformers(family: str) -> None:
    requests = [Request(i, i % 2, prompt(3 + 5 * i, i), i, 40, Sampling(temperature=0.0)) for i in range(6)]
    for request_id, done in run(engine_with(family, 2), requests).items():
        request = requests[request_id]
        ids = torch.tensor([request.prompt_ids])
        generated = built(family, request.version)[0].generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40
        )
        expected = tuple(generated[0, ids.shape[1] :].tolist())
        assert done.span.token_ids == expected
        assert done.finish_reason == ("stop" if expected[-1] in EOS else "length")


def test_a_long_row_among_short_ones() -> None:
    """One row over many blocks while its neighbours come and go, so that blocks are moved down under it."""
    engine, family = engine_with("qwen3", 2, slots=12, context=250), "qwen3"
    short = [Request(i, i % 2, prompt(40, i), i, 3, Sampling(1.4)) for i in range(1, 60)]
    long = Request(0, 1, prompt(2, 0), 3, 240, Sampling(0.3))
    done = run(engine, [*short[:11], long, *short[11:]])
    for request in (long, *short):
        span = done[request.request_id].span
        table = oracle_logits(built(family, request.version)[0], request.prompt_ids + span.token_ids)
        table = (table[len(request.prompt_ids) - 1 : -1] / request.sampling.temperature).log_softmax(1)
        expected = [float(table[i, token]) for i, token in enumerate(span.token_ids)]
        assert span.behaviour_logprobs == pytest.approx(expected, abs=CLOSE)
