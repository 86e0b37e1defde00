"""Compiled passes against `transformers` in double precision: the same logits, the same gradient of every parameter."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from offbeat.errors import InvariantError
from offbeat.learner.batches import Sample
from offbeat.learner.layout import MicroBatch, micro_batches
from offbeat.learner.passes import CompiledPass, can_pass
from offbeat.learner.policy import Policy

from .conftest import VOCABULARY, save_model

SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {}),
    ("qwen3", {"tie_word_embeddings": False, "attention_bias": True, "num_key_value_heads": 4}),
    ("qwen2", {"num_key_value_heads": 1}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}}),
]


def load(directory: Path, family: str, changes: dict[str, Any]) -> Any:
    """A model whose gains and biases are not the ones and zeros it begins with."""
    save_model(directory, family, **changes)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.uniform_(0.4, 1.6)
    return model


def batch_of(seed: int) -> MicroBatch:
    rng = random.Random(seed)
    samples = []
    for group in range(4):
        prompt = tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 6)))
        for _ in range(3):
            tokens = tuple(rng.randrange(VOCABULARY) for _ in range(rng.choice([1, 2, 5, 19])))
            samples.append(Sample(group, prompt, tokens, (-1.0,) * len(tokens), None, 0.0))
    (batch,) = micro_batches(samples, 4096, "tree")
    return batch


def slow_logits(model: Any, batch: MicroBatch) -> torch.Tensor:
    """One text at a time through `transformers`."""
    rows = []
    for sample in batch.samples:
        ids = torch.tensor([[*sample.prompt_ids, *sample.response_ids]])
        rows.append(model(input_ids=ids).logits[0, len(sample.prompt_ids) - 1 : -1])
    return torch.cat(rows)


@pytest.mark.parametrize(("family", "changes"), SHAPES, ids=[f"{f}-{i}" for i, (f, _) in enumerate(SHAPES)])
def test_logits_and_gradients_are_those_of_transformers(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    model = load(tmp_path, family, changes)
    assert can_pass(model)
    compiled, batch = CompiledPass(model), batch_of(0)
    assert batch.tree is not None
    logits = compiled.logits(batch.tree, batch.predicting)
    pull = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    (logits * pull).sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model.double()
    expected = slow_logits(model, batch)
    (expected * pull.double()).sum().backward()
    torch.testing.assert_close(logits.double(), expected, atol=2e-5, rtol=1e-5)
    for name, parameter in model.named_parameters():
        scale = parameter.grad.abs().max()
        assert scale > 0, name
        assert (found[name] - parameter.grad).abs().max() <= 1e-5 * scale, name


def test_the_same_again_bit_for_bit_whatever_was_passed_between(tmp_path: Path) -> None:
    model = load(tmp_path, "qwen3", {})
    compiled, seen = CompiledPass(model), []
    for seed in (0, 1, 0):
        batch = batch_of(seed)
        assert batch.tree is not None
        model.zero_grad()
        compiled.logits(batch.tree, batch.predicting).square().sum().backward()
        seen.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.equal(seen[0], seen[2])


def test_going_back_through_a_pass_that_was_overwritten_is_refused(tmp_path: Path) -> None:
    compiled, batch = CompiledPass(load(tmp_path, "qwen3", {})), batch_of(0)
    assert batch.tree is not None
    first = compiled.logits(batch.tree, batch.predicting)
    compiled.logits(batch.tree, batch.predicting)
    with pytest.raises(InvariantError, match="go back first"):
        first.sum().backward()


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(tmp_path: Path, name: str, value: float) -> None:
    """A clamped exponential or a maximum must not swallow it: the step has to see it and leave itself out."""
    model = load(tmp_path, "qwen3", {})
    for key, parameter in model.named_parameters():
        if name in key:
            parameter.data[0, 0] = value
    batch = batch_of(0)
    assert batch.tree is not None
    logits = CompiledPass(model).logits(batch.tree, batch.predicting)
    assert not torch.isfinite(logits).all()


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3", {"hidden_act": "gelu"}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    ],
)
def test_what_it_would_not_compute_exactly_is_left_to_transformers(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    assert not can_pass(load(tmp_path, family, changes))


def test_other_types_and_more_parameters_are_left_to_transformers(tmp_path: Path) -> None:
    model = load(tmp_path, "qwen3", {})
    model.model.layers[0].mlp.extra = torch.nn.Linear(2, 2)
    assert not can_pass(model)
    del model.model.layers[0].mlp.extra
    assert can_pass(model)
    assert not can_pass(model.bfloat16())


def test_hooks_on_the_model_are_heard(tmp_path: Path) -> None:
    policy = Policy.load(save_model(tmp_path))
    samples = [Sample(0, (1, 2), (3, 4), (-1.0, -1.0), None, 1.0)]
    assert [batch.tree is None for batch in policy.micro_batches(samples, 100)] == [False]
    policy.model.get_input_embeddings().register_forward_hook(lambda *_: None)
    assert [batch.tree is None for batch in policy.micro_batches(samples, 100)] == [True]
