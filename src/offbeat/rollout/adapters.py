"""Versions that are adapters: read, checked against the base model, and merged into its matrices.

Invariant: an adapter that is not of exactly this base model is refused (WeightsError), whatever engine takes it.
Knows no request; who holds how many versions is the engines' business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from torch import Tensor

from offbeat.errors import WeightsError
from offbeat.records import Adapter
from offbeat.rollout.config import ModelShape
from offbeat.rollout.weights import expected_shapes

PREFIX = "base_model.model."
"""What peft puts before the name of a module of the base model."""
MODULES = {**dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "self_attn")} | dict.fromkeys(
    ("gate_proj", "up_proj", "down_proj"), "mlp"
)


def adapter_of(weights: Path) -> Adapter | None:
    """What the metadata of a version's file says it is; None for full weights.

    Raises WeightsError for a file that cannot be read or holds no safetensors header.
    """
    try:
        with open(weights, "rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            metadata = json.loads(opened.read(min(length, 1 << 26))).get("__metadata__") or {}
        return msgspec.json.decode(metadata["adapter"], type=Adapter) if "adapter" in metadata else None
    except OSError as error:
        raise WeightsError(f"{weights}: cannot be read ({error.strerror})") from None
    except (ValueError, AttributeError, msgspec.MsgspecError) as error:
        raise WeightsError(f"{weights}: not a safetensors file of offbeat ({error})") from None


def adapted(shape: ModelShape, adapter: Adapter) -> list[str]:
    """Names, without `.weight`, of the base model's matrices that the adapter changes."""
    return [
        f"model.layers.{layer}.{MODULES[target]}.{target}"
        for layer in range(shape.layers)
        for target in adapter.targets
    ]


def read_adapter(path: Path, shape: ModelShape, base: str) -> tuple[str, Adapter, dict[str, Tensor]]:
    """SHA-256 of the file, what it is, and its tensors in float32: A [rank, in] and B [out, rank] by peft's names.

    `base` is the SHA-256 of the weights there are. Raises WeightsError for an unreadable file, one of another base
    model, missing, extra or misshaped tensors and values that are not finite.
    """
    adapter = adapter_of(path)
    if adapter is None:
        raise WeightsError(f"{path}: full weights, where an adapter is expected")
    if adapter.base != base:
        raise WeightsError(f"{path}: an adapter of weights {adapter.base[:12]}, the base model here is {base[:12]}")
    try:
        data = path.read_bytes()
        tensors = parse_safetensors(data)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror})") from None
    except (SafetensorError, KeyError, ValueError) as error:
        raise WeightsError(f"{path}: not a safetensors file ({error})") from None
    expected: dict[str, tuple[int, ...]] = {}
    whole = expected_shapes(shape)
    for name in adapted(shape, adapter):
        out, into = whole[f"{name}.weight"]
        expected[f"{PREFIX}{name}.lora_A.weight"] = (adapter.rank, into)
        expected[f"{PREFIX}{name}.lora_B.weight"] = (out, adapter.rank)
    odd = sorted(expected.keys() ^ tensors.keys())
    if odd:
        raise WeightsError(f"{path}: {len(odd)} tensors missing or too many, first {odd[0]}")
    for name, size in expected.items():
        if tuple(tensors[name].shape) != size:
            raise WeightsError(f"{path}: {name} has shape {tuple(tensors[name].shape)}, expected {size}")
        if not bool(torch.isfinite(tensors[name]).all()):
            raise WeightsError(f"{path}: {name} holds values that are not finite")
    return hashlib.sha256(data).hexdigest(), adapter, {name: tensor.float() for name, tensor in tensors.items()}


def merged(
    base: Mapping[str, Tensor], shape: ModelShape, adapter: Adapter, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The base model's tensors with the adapter's changes; those it leaves alone are the base's own."""
    named = dict(base)
    for name in adapted(shape, adapter):
        down, up = tensors[f"{PREFIX}{name}.lora_A.weight"], tensors[f"{PREFIX}{name}.lora_B.weight"]
        named[f"{name}.weight"] = torch.addmm(base[f"{name}.weight"], up, down, alpha=adapter.alpha / adapter.rank)
    return named
