"""Weights put in place of others: nothing of the version before is left, and the canary would notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

pytest.importorskip("vllm", reason="vLLM is in an environment of its own; `make vllm test-vllm` runs these")

from offbeat.backends.vllm import full_weights
from offbeat.backends.vllm.engine import VllmEngine
from offbeat.backends.weights import CANARY_TOLERANCE, Canary, Manifest, check_canary
from offbeat.errors import WeightsError
from offbeat.ports import Request
from tests.on_vllm.tiny import built, weights

PROMPT, RESPONSE = tuple(5 + i % 30 for i in range(40)), (5, 9, 30, 11)
"""A prompt of more than one block of keys and values: vLLM remembers such ones."""


@pytest.fixture(scope="module")
def engine() -> VllmEngine:
    return VllmEngine(built("llama", True)[1], slots=3, context=96)


@pytest.fixture(autouse=True)
def emptied(engine: VllmEngine) -> Iterator[None]:
    yield
    for version in engine.versions:
        engine.unload(version)


@torch.no_grad()
def target_logprobs(model: nn.Module) -> tuple[float, ...]:
    sequence = torch.tensor([[*PROMPT, *RESPONSE]])
    logprobs = model(sequence).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    return tuple(logprobs.gather(1, sequence[0, len(PROMPT) :, None])[:, 0].tolist())


def manifest(seed: int) -> Manifest:
    return Manifest(seed, "", Canary(PROMPT, RESPONSE, target_logprobs(built("llama", True, seed)[0])))


def prove(engine: VllmEngine, version: int) -> None:
    check_canary(manifest(version), lambda prompt, response: engine.score(version, prompt, response))


def put_in_place(engine: VllmEngine, version: int) -> None:
    for held in engine.versions:
        engine.unload(held)
    engine.load(version, weights("llama", True, version))


def test_every_version_is_served_as_the_learner_has_it(engine: VllmEngine) -> None:
    """Tied head, and the same prompt again: keys and values of it under the version before are forgotten."""
    for version in (0, 1, 2, 1):
        put_in_place(engine, version)
        prove(engine, version)


def test_the_canary_notices_a_head_left_behind(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `pack_again` vLLM 0.32 goes on with the packed head of the version before. A vLLM that makes this fail
    needs `pack_again` no more."""
    put_in_place(engine, 0)
    prove(engine, 0)
    monkeypatch.setattr(full_weights, "pack_again", lambda model: None)
    put_in_place(engine, 1)
    with pytest.raises(WeightsError, match="does not serve the published weights"):
        prove(engine, 1)
    engine.unload(1)
    monkeypatch.undo()
    put_in_place(engine, 1)
    prove(engine, 1)


def test_the_canary_notices_remembered_prompts(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(engine, 0)
    prove(engine, 0)
    monkeypatch.setattr(engine._llm, "reset_prefix_cache", lambda: True)
    put_in_place(engine, 1)
    with pytest.raises(WeightsError, match="does not serve the published weights"):
        prove(engine, 1)
    monkeypatch.undo()


def test_a_canary_disturbs_nothing_that_runs(engine: VllmEngine) -> None:
    """What ends while it is scored is answered by the next step; every slot may be in use."""
    requests = [Request(i, 0, PROMPT, i, 1 + 5 * i) for i in range(3)]
    alone = {}
    put_in_place(engine, 0)
    for request in requests:
        engine.submit(request)
        while engine.decoded():
            alone |= {done.request_id: done.token_ids for done in engine.step()}
    for request in requests:
        engine.submit(request)
    beside = {done.request_id: done.token_ids for done in engine.step()}
    scored = engine.score(0, PROMPT, RESPONSE)
    assert max(abs(a - b) for a, b in zip(scored, target_logprobs(built("llama", True)[0]), strict=True)) < (
        CANARY_TOLERANCE
    )
    while len(beside) < 3:
        beside |= {done.request_id: done.token_ids for done in engine.step()}
    assert beside == alone
