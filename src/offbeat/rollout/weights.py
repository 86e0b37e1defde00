"""One version's weights, checked against the shape and folded for the forward pass.

Folding keeps the function and saves work per token: RMS-norm gains go into the matrix that follows (with the
sqrt of the width, since the engine normalises by the root of the sum of squares) and 1/sqrt(head_dim) into the
queries.
Invariant: a file that is not exactly the announced model is refused (WeightsError). Knows nothing of requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from torch import Tensor

from offbeat.errors import WeightsError
from offbeat.rollout.config import ModelShape

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Matrices [in, out], contiguous; biases [out], or [0] where the model has none. `qk_gain` [heads + kv_heads,
    head_dim], or [0, 0] without query-key norms."""

    qkv: Tensor
    qkv_bias: Floats
    qk_gain: Floats
    out: Tensor
    out_bias: Floats
    gate_up: Tensor
    gate_up_bias: Floats
    down: Tensor
    down_bias: Floats


@dataclass(frozen=True, slots=True)
class VersionWeights:
    """All of a version: `embed` [vocab, width], `head` [width, vocab]; `digest` is the file's SHA-256."""

    digest: str
    embed: Floats
    layers: tuple[LayerWeights, ...]
    head: Tensor


def read_weights(path: Path, shape: ModelShape) -> VersionWeights:
    """Read a `model.safetensors` and fold it. Raises WeightsError as `read_tensors` does."""
    return folded(*read_tensors(path, shape), shape)


@torch.inference_mode()
def folded(digest: str, named: Mapping[str, Tensor], shape: ModelShape) -> VersionWeights:
    """A version of these tensors, all that `expected_shapes` names."""
    layers = tuple(_layer(named, i, shape) for i in range(shape.layers))
    embed = named["model.embed_tokens.weight"]
    head = embed if shape.tied else named["lm_head.weight"]
    return VersionWeights(
        digest, embed.contiguous().numpy(), layers, _folded(head, named["model.norm.weight"], shape.width)
    )


@torch.inference_mode()
def refolded(digest: str, named: Mapping[str, Tensor], shape: ModelShape, base: VersionWeights) -> VersionWeights:
    """The same, where embedding, head and last norm are those of `base`: they are shared."""
    return replace(base, digest=digest, layers=tuple(_layer(named, i, shape) for i in range(shape.layers)))


def read_tensors(path: Path, shape: ModelShape) -> tuple[str, dict[str, Tensor]]:
    """SHA-256 of a `model.safetensors` and its tensors in float32 by their Hugging Face names, exactly those of
    `expected_shapes`; tied models may leave `lm_head.weight` out.

    Raises WeightsError for an unreadable file, missing, extra or misshaped tensors and non-finite values.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        tensors = parse_safetensors(data)
    except (SafetensorError, KeyError, ValueError) as error:
        raise WeightsError(f"{path}: not a safetensors file ({error})") from None
    digest = hashlib.sha256(data).hexdigest()
    del data
    return digest, _checked(path, tensors, shape)


def expected_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model of this shape by its Hugging Face name, without the head of a tied model."""
    width, hidden, dim = shape.width, shape.hidden, shape.head_dim
    q, kv = shape.heads * dim, shape.kv_heads * dim
    outputs = {
        "self_attn.q_proj": (q, width, shape.qkv_bias),
        "self_attn.k_proj": (kv, width, shape.qkv_bias),
        "self_attn.v_proj": (kv, width, shape.qkv_bias),
        "self_attn.o_proj": (width, q, shape.out_bias),
        "mlp.gate_proj": (hidden, width, shape.mlp_bias),
        "mlp.up_proj": (hidden, width, shape.mlp_bias),
        "mlp.down_proj": (width, hidden, shape.mlp_bias),
    }
    named: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab, width),
        "model.norm.weight": (width,),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        for name, (out, into, bias) in outputs.items():
            named[f"{prefix}{name}.weight"] = (out, into)
            if bias:
                named[f"{prefix}{name}.bias"] = (out,)
        named[f"{prefix}input_layernorm.weight"] = (width,)
        named[f"{prefix}post_attention_layernorm.weight"] = (width,)
        if shape.qk_norm:
            named[f"{prefix}self_attn.q_norm.weight"] = (dim,)
            named[f"{prefix}self_attn.k_norm.weight"] = (dim,)
    if not shape.tied:
        named["lm_head.weight"] = (shape.vocab, width)
    return named


def _checked(path: Path, tensors: dict[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """The tensors as float32, exactly those the shape asks for."""
    expected = expected_shapes(shape)
    if missing := sorted(expected.keys() - tensors.keys()):
        raise WeightsError(f"{path}: {len(missing)} tensors missing, first {missing[0]}")
    extra = sorted(name for name in tensors.keys() - expected.keys() if not name.endswith("rotary_emb.inv_freq"))
    if shape.tied and "lm_head.weight" in extra:
        extra.remove("lm_head.weight")
        if not torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"]):
            raise WeightsError(f"{path}: lm_head.weight differs from the embedding it is tied to")
    if extra:
        raise WeightsError(f"{path}: {len(extra)} tensors too many, first {extra[0]}")
    named = {}
    for name, size in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != size:
            raise WeightsError(f"{path}: {name} has shape {tuple(tensor.shape)}, the model's config asks for {size}")
        if not tensor.is_floating_point():
            raise WeightsError(f"{path}: {name} has type {tensor.dtype}, not a floating-point type")
        named[name] = tensor.float()
        if not bool(torch.isfinite(named[name]).all()):
            raise WeightsError(f"{path}: {name} holds values that are not finite")
    return named


def _layer(named: Mapping[str, Tensor], layer: int, shape: ModelShape) -> LayerWeights:
    prefix, dim = f"model.layers.{layer}.", shape.head_dim
    scale = dim**-0.5

    def get(name: str) -> Tensor:
        return named[prefix + name]

    def joined_bias(*names: str) -> Tensor:
        return torch.cat([get(f"{name}.bias") for name in names if f"{prefix}{name}.bias" in named] or [torch.empty(0)])

    qkv = torch.cat([get(f"self_attn.{name}_proj.weight") for name in "qkv"])
    bias = joined_bias("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gain = torch.empty(0, 0)
    if shape.qk_norm:
        gain_q = get("self_attn.q_norm.weight") * (scale * dim**0.5)
        gain_k = get("self_attn.k_norm.weight") * dim**0.5
        gain = torch.cat([gain_q.expand(shape.heads, dim), gain_k.expand(shape.kv_heads, dim)])
    else:
        qkv[: shape.heads * dim] *= scale
        bias[: shape.heads * dim] *= scale
    return LayerWeights(
        qkv=_folded(qkv, get("input_layernorm.weight"), shape.width),
        qkv_bias=bias.numpy(),
        qk_gain=gain.numpy(),
        out=get("self_attn.o_proj.weight").T.contiguous(),
        out_bias=joined_bias("self_attn.o_proj").numpy(),
        gate_up=_folded(
            torch.cat([get("mlp.gate_proj.weight"), get("mlp.up_proj.weight")]),
            get("post_attention_layernorm.weight"),
            shape.width,
        ),
        gate_up_bias=joined_bias("mlp.gate_proj", "mlp.up_proj").numpy(),
        down=get("mlp.down_proj.weight").T.contiguous(),
        down_bias=joined_bias("mlp.down_proj").numpy(),
    )


def _folded(matrix: Tensor, gain: Tensor, width: int) -> Tensor:
    """[out, in] and the gain [in] of the norm before it -> [in, out], ready for x / |x|."""
    folded: Tensor = matrix * (gain * width**0.5)
    return folded.T.contiguous()
