"""A version that is an adapter: the engine gives what `transformers` gives with the formula's matrices, and refuses
what is not of its base model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from offbeat.errors import WeightsError
from offbeat.ports import Request
from offbeat.rollout.adapters import PREFIX, adapter_of
from offbeat.rollout.engine import Engine
from tests.rollout.tiny import built, oracle_logits, weights, write_adapter

PROMPT, RESPONSE = (1, 2, 4, 9), (5, 9, 30, 11, 2)


def slow_scores(family: str, file: Path, rank: int = 4, alpha: float = 8) -> list[float]:
    """W + alpha / rank B A, matrix by matrix, in a copy of the model."""
    model = copy.deepcopy(built(family)[0])
    tensors = load_file(file)
    with torch.no_grad():
        for name, down in tensors.items():
            if "lora_A" in name:
                module = model.get_submodule(name.removeprefix(PREFIX).removesuffix(".lora_A.weight"))
                module.weight += alpha / rank * tensors[name.replace("lora_A", "lora_B")] @ down
    logprobs = oracle_logits(model, [*PROMPT, *RESPONSE]).log_softmax(-1)
    return [float(logprobs[len(PROMPT) - 1 + i, token]) for i, token in enumerate(RESPONSE)]


@pytest.mark.parametrize("family", ["llama-tied-bias", "qwen3"])
def test_adapters_beside_full_weights(family: str, tmp_path: Path) -> None:
    engine = Engine(built(family)[1], slots=3, context=48)
    files = [write_adapter(tmp_path / f"{seed}", built(family)[1], seed) for seed in (1, 2)]
    engine.load(0, weights(family))
    for version, file in enumerate(files, 1):
        engine.load(version, file)
    found = [engine.score(version, PROMPT, RESPONSE) for version in range(3)]
    for version, file in enumerate(files, 1):
        np.testing.assert_allclose(found[version], slow_scores(family, file), atol=1e-4)
    assert abs(np.array(found[0]) - found[1]).max() > 0.1
    assert abs(np.array(found[1]) - found[2]).max() > 0.1
    for version in range(3):
        engine.submit(Request(version, version, PROMPT, 5, 9))
    answers = {}
    while engine.decoded():
        answers |= {done.request_id: done.span for done in engine.step()}
    for version, span in answers.items():
        np.testing.assert_allclose(span.behaviour_logprobs, engine.score(version, PROMPT, span.token_ids), atol=1e-4)


def test_what_adapters_leave_alone_is_held_once(tmp_path: Path) -> None:
    engine = Engine(built("llama")[1], slots=2, context=48)
    for version in (1, 2):
        engine.load(version, write_adapter(tmp_path / f"{version}", built("llama")[1], version))
    held = engine._weights
    assert held[1].head is held[2].head
    assert held[1].embed is held[2].embed


def changed(change: Callable[[dict[str, Any]], None]) -> Callable[[Path, Path], None]:
    def damage(file: Path, model_dir: Path) -> None:
        tensors, adapter = load_file(file), adapter_of(file)
        assert adapter is not None
        from offbeat.learner.lora import as_metadata

        change(tensors)
        save_file(tensors, file, metadata=as_metadata(adapter))

    return damage


NAME = f"{PREFIX}model.layers.0.mlp.up_proj.lora_A.weight"
DAMAGES: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "another base": (lambda file, model: write_adapter(file, model, 1, base="0" * 64), "an adapter of weights 000000"),
    "another rank": (changed(lambda tensors: tensors.update({NAME: tensors[NAME][:2].clone()})), "has shape"),
    "missing": (changed(lambda tensors: tensors.pop(NAME)), "1 tensors missing or too many"),
    "too many": (changed(lambda tensors: tensors.update(more=torch.ones(1))), "1 tensors missing or too many"),
    "not finite": (changed(lambda tensors: tensors[NAME].fill_(torch.nan)), "not finite"),
    "cut off": (lambda file, model: file.write_bytes(file.read_bytes()[:-9]), "not a safetensors file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_adapter_of_this_model_is_refused(damage: str, tmp_path: Path) -> None:
    model_dir = built("qwen3")[1]
    file = write_adapter(tmp_path / "file", model_dir, 1)
    act, words = DAMAGES[damage]
    act(file, model_dir)
    with pytest.raises(WeightsError, match=words):
        Engine(model_dir, slots=2, context=48).load(1, file)
