"""Tiny random Hugging Face models of every supported family, and the slow-obvious oracle for what they sample."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from offbeat.durable import file_digest
from offbeat.learner.lora import as_metadata
from offbeat.ports import Sampling
from offbeat.records import Adapter
from offbeat.rollout.adapters import PREFIX, adapted
from offbeat.rollout.config import read_shape
from offbeat.rollout.weights import expected_shapes
from tests.scratch import scratch

VOCAB = 41
EOS = [3, 7]

LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip

FAMILIES: dict[str, tuple[type[PreTrainedModel], Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": False, "num_key_value_heads": 4}),
    "llama-tied-bias": (
        LlamaForCausalLM,
        LlamaConfig,
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3_ROPE},
    ),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 12, "tie_word_embeddings": True}),
    "qwen3-untied-bias": (
        Qwen3ForCausalLM,
        Qwen3Config,
        {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": False, "num_key_value_heads": 1},
    ),
}


def make_model(family: str, seed: int, **changes: Any) -> PreTrainedModel:
    """A model whose every parameter matters: gains and biases are random, too."""
    kind, config_kind, options = FAMILIES[family]
    config = config_kind(
        **{
            "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
            "bos_token_id": None, "pad_token_id": None, "eos_token_id": EOS, "initializer_range": 0.25,
            "attn_implementation": "eager", **options, **changes,
        }
    )  # fmt: skip
    torch.manual_seed(seed)
    model = kind(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.3, 1.3)
    return model


@cache
def built(family: str, seed: int = 0) -> tuple[PreTrainedModel, Path]:
    """The model and its directory, made once a test session."""
    model, directory = make_model(family, seed), scratch("tiny")
    model.save_pretrained(directory)
    return model, directory


def weights(family: str, seed: int = 0) -> Path:
    return built(family, seed)[1] / "model.safetensors"


TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(file: Path, model_dir: Path, seed: int, **changes: Any) -> Path:
    """An adapter of the model in `model_dir` whose every tensor matters; `changes` are of the announced Adapter."""
    shape = read_shape(model_dir)
    base = file_digest(model_dir / "model.safetensors")
    adapter = Adapter(**{"rank": 4, "alpha": 8, "targets": TARGETS, "base": base, **changes})
    sizes, made = expected_shapes(shape), torch.Generator().manual_seed(seed)
    tensors = {}
    for name in adapted(shape, adapter):
        out, into = sizes[f"{name}.weight"]
        tensors[f"{PREFIX}{name}.lora_A.weight"] = torch.randn(adapter.rank, into, generator=made) * 0.2
        tensors[f"{PREFIX}{name}.lora_B.weight"] = torch.randn(out, adapter.rank, generator=made) * 0.2
    save_file(tensors, file, metadata=as_metadata(adapter))
    return file


@torch.no_grad()
def oracle_logits(model: PreTrainedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """Logits [L, vocab] of a whole sequence by `transformers`."""
    return model(torch.tensor([list(token_ids)])).logits[0].float()


def oracle_distribution(logits: Sequence[float], sampling: Sampling) -> dict[int, float]:
    """Token -> probability: temperature, then the top_k likeliest, then the fewest that hold top_p, normalised."""
    heat = sampling.temperature or 1.0
    scaled = torch.tensor(logits, dtype=torch.float64) / heat
    ranked = sorted(range(len(logits)), key=lambda token: -float(scaled[token]))
    if sampling.temperature and sampling.top_k:
        ranked = ranked[: sampling.top_k]
    weight = {token: float(torch.exp(scaled[token] - scaled.max())) for token in ranked}
    if sampling.temperature and sampling.top_p < 1:
        total, held, kept = sum(weight.values()), 0.0, {}
        for token in ranked:
            if held >= sampling.top_p * total:
                break
            kept[token] = weight[token]
            held += weight[token]
        weight = kept
    total = sum(weight.values())
    return {token: value / total for token, value in weight.items()}
