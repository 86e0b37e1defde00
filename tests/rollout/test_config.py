"""Reading a model directory: what is supported is read as `transformers` reads it, all else refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from offbeat.errors import EngineError
from offbeat.rollout.config import read_shape
from tests.rollout.tiny import FAMILIES, LLAMA3_ROPE, built


def write_config(directory: Path, **changes: Any) -> Path:
    config: dict[str, Any] = {
        "model_type": "qwen3", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        "tie_word_embeddings": True, "eos_token_id": 5, **changes,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))
    return directory


@pytest.mark.parametrize("family", FAMILIES)
def test_frequencies_are_those_of_transformers(family: str) -> None:
    model, directory = built(family)
    expected = model.model.rotary_emb.inv_freq
    torch.testing.assert_close(torch.tensor(read_shape(directory).frequencies), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rope", [{"rope_type": "linear", "rope_theta": 500.0, "factor": 2.5}, LLAMA3_ROPE])
def test_scaled_frequencies_are_those_of_transformers(rope: dict[str, Any], tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=1, vocab_size=9,
        intermediate_size=8, rope_parameters=rope,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    expected = LlamaForCausalLM(config).model.rotary_emb.inv_freq
    torch.testing.assert_close(torch.tensor(read_shape(tmp_path).frequencies), expected, rtol=1e-6, atol=0)


def test_the_older_spelling_of_rope_means_the_same(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    scaling = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    new = read_shape(write_config(tmp_path / "new", rope_parameters=LLAMA3_ROPE))
    old = read_shape(write_config(tmp_path / "old", rope_parameters="absent", rope_theta=10000.0, rope_scaling=scaling))
    assert new == old


def test_defaults_follow_the_family(tmp_path: Path) -> None:
    shape = read_shape(
        write_config(tmp_path, model_type="llama", num_key_value_heads="absent", head_dim="absent", attention_bias=True)
    )
    assert (shape.kv_heads, shape.head_dim, shape.group) == (4, 8, 1)
    assert shape.qkv_bias
    assert shape.out_bias
    assert not shape.qk_norm


def test_qwen2_has_biases_but_not_on_the_output(tmp_path: Path) -> None:
    shape = read_shape(write_config(tmp_path, model_type="qwen2"))
    assert (shape.qkv_bias, shape.out_bias, shape.mlp_bias, shape.qk_norm) == (True, False, False, False)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [(5, None, {5}), ([5, 6], None, {5, 6}), (5, 9, {9}), (5, [9, 2], {9, 2}), (5, "absent", {5}), (None, None, set())],
)
def test_eos_ids(config: Any, generation: Any, expected: set[int], tmp_path: Path) -> None:
    write_config(tmp_path, eos_token_id=config)
    if generation is not None:
        content = {} if generation == "absent" else {"eos_token_id": generation}
        (tmp_path / "generation_config.json").write_text(json.dumps(content))
    assert read_shape(tmp_path).eos_ids == expected


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mistral"}, "mistral"),
        ({"model_type": "absent"}, "model_type"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_type"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=named) as refused:
        read_shape(write_config(tmp_path, **changes))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_missing_or_damaged_config_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(EngineError, match=r"config\.json"):
        read_shape(tmp_path)
