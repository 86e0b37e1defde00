"""Versions as adapters of one vLLM engine: the same tokens as the local engine, and no name used twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is in an environment of its own; `make vllm test-vllm` runs these")

from offbeat.errors import EngineError, WeightsError
from offbeat.ports import Request
from offbeat.rollout.engine import Engine
from tests.on_vllm.tiny import CONTEXT, adapters, built, weights
from tests.rollout.tiny import write_adapter


def test_every_slot_for_versions_in_use_and_all_as_the_local_engine_has_them(tmp_path: Path) -> None:
    """vLLM 0.32 on the CPU computes wrongly when all its adapter slots are taken: one more than we use stays free."""
    model_dir = built("llama", True)[1]
    theirs, ours = adapters("llama", True).fresh(), Engine(model_dir, slots=3, context=CONTEXT)
    assert theirs._llm.vllm_config.lora_config.max_loras == 3
    files = {version: write_adapter(tmp_path / f"{version}", model_dir, version) for version in range(2)}
    answers = []
    for engine in (theirs, ours):
        for version, file in files.items():
            engine.load(version, file)
        for i in range(9):
            engine.submit(Request(i, i % 2, (1, 2, 4, 9 + i), 50 + i, 20))
        found = {}
        while engine.decoded():
            found |= {done.request_id: done.span for done in engine.step()}
        answers.append(found)
    for i in range(9):
        assert answers[0][i].token_ids == answers[1][i].token_ids
        np.testing.assert_allclose(
            answers[0][i].behaviour_logprobs, answers[1][i].behaviour_logprobs, atol=1e-4
        )  # fmt: skip


def test_another_version_takes_over_as_on_the_local_engine(tmp_path: Path) -> None:
    """Suspended, nothing is decoded; then the prefix is computed again under the new version, a span of its own."""
    model_dir = built("llama", True)[1]
    theirs, ours = adapters("llama", True).fresh(), Engine(model_dir, slots=3, context=CONTEXT)
    answers = []
    for engine in (theirs, ours):
        for version in range(2):
            engine.load(version, write_adapter(tmp_path / f"{version}", model_dir, version))
        for i in range(5):
            engine.submit(Request(i, 0, (1, 2, 4, 9 + i), 70 + i, 24))
        found = {}
        for _ in range(3):
            found |= {done.request_id: done.spans for done in engine.step()}
        before = engine.decoded()
        engine.suspend(tuple(before))
        assert engine.step() == []
        assert engine.decoded() == before
        engine.switch(tuple(before), 1, keep_cache=False)
        while engine.decoded():
            found |= {done.request_id: done.spans for done in engine.step()}
        answers.append(found)
    assert any(len(spans) == 2 for spans in answers[0].values())
    for i, spans in answers[0].items():
        for span, other in zip(spans, answers[1][i], strict=True):
            assert (span.version, span.token_ids) == (other.version, other.token_ids)
            np.testing.assert_allclose(span.behaviour_logprobs, other.behaviour_logprobs, atol=1e-4)
    with pytest.raises(EngineError, match="over the keys and values"):
        theirs.switch((0,), 1, keep_cache=True)


def test_a_name_carries_its_version_and_is_never_used_again(tmp_path: Path) -> None:
    """vLLM remembers prompts by the adapter's name: what comes back under the same number is other weights."""
    engine, model_dir = adapters("llama", True).fresh(), built("llama", True)[1]
    names, scores = set(), []
    prompt = tuple(5 + i % 30 for i in range(40))
    for seed in (1, 2, 1):
        engine.load(7, write_adapter(tmp_path / "file", model_dir, seed))
        request = engine._versions.adapter(7)
        assert request.lora_name.startswith("version-7-")
        names.add((request.lora_name, request.lora_int_id))
        scores.append(engine.score(7, prompt, (5, 9)))
        engine.unload(7)
    assert len(names) == 3
    np.testing.assert_allclose(scores[0], scores[2], atol=1e-5)
    assert abs(scores[0][0] - scores[1][0]) > 0.01


def test_more_than_there_is_room_for_is_refused(tmp_path: Path) -> None:
    engine, model_dir = adapters("llama", True).fresh(), built("llama", True)[1]
    for version in range(2):
        engine.load(version, write_adapter(tmp_path / f"{version}", model_dir, version))
    with pytest.raises(EngineError, match="room for 2 adapters and holds"):
        engine.load(2, write_adapter(tmp_path / "2", model_dir, 2))
    with pytest.raises(EngineError, match="loaded with other weights"):
        engine.load(1, write_adapter(tmp_path / "3", model_dir, 3))
    engine.unload(0)
    with pytest.raises(WeightsError, match="full weights, where an adapter is expected"):
        engine.load(2, weights("llama", True))
