"""A weights file is exactly the announced model, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from offbeat.errors import WeightsError
from offbeat.rollout.config import read_shape
from offbeat.rollout.weights import expected_shapes, read_weights
from tests.rollout.tiny import FAMILIES, VOCAB, built, weights

NORM = "model.layers.1.post_attention_layernorm.weight"


def changed(path: Path, change: Callable[[dict[str, Tensor]], object], family: str = "qwen3") -> Path:
    tensors = {name: tensor.clone() for name, tensor in load_file(weights(family)).items()}
    change(tensors)
    save_file(tensors, path / "changed.safetensors")
    return path / "changed.safetensors"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_expected_names_are_those_transformers_writes(family: str) -> None:
    written = {name: tuple(tensor.shape) for name, tensor in load_file(weights(family)).items()}
    assert expected_shapes(read_shape(built(family)[1])) == written


def set_nan(tensors: dict[str, Tensor]) -> None:
    tensors[NORM][3] = torch.nan


def set_inf(tensors: dict[str, Tensor]) -> None:
    tensors["model.embed_tokens.weight"][0, 0] = torch.inf


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop(NORM), f"missing, first {NORM}"),
        (lambda t: t.update({"model.layers.2.mlp.up_proj.weight": torch.ones(1)}), r"too many.*layers\.2"),
        (lambda t: t.update({NORM: torch.ones(31)}), r"\(31,\)"),
        (lambda t: t.update({NORM: torch.ones(32, dtype=torch.int32)}), "int32"),
        (lambda t: t.update({"lm_head.weight": torch.ones(VOCAB, 32)}), "tied"),
        (set_nan, f"{NORM} holds"),
        (set_inf, "not finite"),
    ],
)
def test_what_is_not_the_model_is_refused(
    change: Callable[[dict[str, Tensor]], object], named: str, tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match=named):
        read_weights(changed(tmp_path, change), read_shape(built("qwen3")[1]))


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_a_truncated_file_is_refused(keep: int, tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(weights("qwen3").read_bytes()[:keep])
    with pytest.raises(WeightsError, match="safetensors"):
        read_weights(tmp_path / "cut", read_shape(built("qwen3")[1]))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="cannot be read"):
        read_weights(tmp_path / "none", read_shape(built("qwen3")[1]))


def test_an_untied_model_needs_its_head(tmp_path: Path) -> None:
    path = changed(tmp_path, lambda t: t.pop("lm_head.weight"), "llama")
    with pytest.raises(WeightsError, match="lm_head"):
        read_weights(path, read_shape(built("llama")[1]))


def test_a_tied_head_may_be_written_out(tmp_path: Path) -> None:
    path = changed(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    shape = read_shape(built("qwen3")[1])
    assert torch.equal(read_weights(path, shape).head, read_weights(weights("qwen3"), shape).head)


def test_half_precision_is_widened(tmp_path: Path) -> None:
    path = changed(tmp_path, lambda t: t.update({name: value.bfloat16() for name, value in t.items()}))
    read = read_weights(path, read_shape(built("qwen3")[1]))
    expected = load_file(weights("qwen3"))["model.embed_tokens.weight"].bfloat16().float()
    assert np.array_equal(read.embed, expected.numpy())
    assert read.layers[0].qkv.dtype == torch.float32
