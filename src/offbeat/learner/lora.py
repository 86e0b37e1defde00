"""LoRA (arXiv 2106.09685) on a causal language model by `peft`: what is trained, stored and exported.

Invariant: B starts at 0, so version 0 is the base model; the base model's weights never change. `peft` is an extra
of offbeat and imported only where it is used.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from offbeat.errors import SettingsError, WeightsError
from offbeat.records import Adapter

_NAME = "default"


def check_peft() -> None:
    """Raises SettingsError where `peft` is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise SettingsError("learner.lora: needs the library peft; install it with pip install 'offbeat[lora]'")


def with_adapter(model: Any, adapter: Adapter, seed: int) -> Any:
    """The model with a fresh adapter, the only part that is trained; A is drawn from `seed`, B is 0."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=adapter.rank, lora_alpha=adapter.alpha, target_modules=list(adapter.targets), lora_dropout=0.0,
        bias="none", task_type="CAUSAL_LM",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def adapter_weights(model: Any) -> dict[str, Tensor]:
    """The adapter's own tensors (not copies) by the names of peft's files."""
    return {
        stored_name(name): parameter.data for name, parameter in model.named_parameters() if parameter.requires_grad
    }


def stored_name(name: str) -> str:
    """A parameter's name in a file: peft leaves the adapter's own name out."""
    return name.replace(f".{_NAME}.", ".")


@torch.no_grad()
def merged_weights(model: Any) -> dict[str, Tensor]:
    """All weights of the base model by Hugging Face names, the adapter merged in; tied tensors once. A copy."""
    changed: dict[str, Tensor] = {}
    for name, module in model.get_base_model().named_modules():
        if hasattr(module, "lora_A"):
            changed[f"{name}.weight"] = module.base_layer.weight + module.get_delta_weight(_NAME)
    merged, seen = dict[str, Tensor](), set[int]()
    for name, tensor in model.get_base_model().state_dict().items():
        plain = name.replace(".base_layer.", ".")
        if ".lora_" in name or tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        merged[plain] = changed.get(plain, tensor).contiguous()
    return merged


def announced_adapter(weights: Path) -> Adapter | None:
    """What a version's file says it is made of; None for full weights. Raises WeightsError where it cannot be read."""
    try:
        with safe_open(weights, framework="pt") as opened:
            metadata: Mapping[str, str] = opened.metadata() or {}
        return msgspec.json.decode(metadata["adapter"], type=Adapter) if "adapter" in metadata else None
    except FileNotFoundError:
        raise WeightsError(f"weights {weights}: no such file") from None
    except (SafetensorError, OSError, msgspec.MsgspecError) as error:
        raise WeightsError(f"weights {weights}: damaged or not safetensors ({error})") from None


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """What is trained, with its names in a version's file."""
    return [(stored_name(name), parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def as_metadata(adapter: Adapter | None) -> dict[str, str]:
    """Metadata of a version's file: one entry, since safetensors writes several in any order and the same weights must
    have the same digest."""
    return {"format": "pt"} if adapter is None else {"adapter": json.dumps(msgspec.to_builtins(adapter))}
