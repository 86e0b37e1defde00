"""A version on disk: model.safetensors with Hugging Face names, optimizer.safetensors with all else to go on from.

*Bitwise-resume invariant*: a learner restored from these files continues exactly as the one that wrote them.
The optimizer file names the digest of the model file it belongs to; each file is renamed into place, the model last.
To sync them is the caller's. safetensors and JSON only, no pickle. Of a sharded policy the model file is written by the
first process, what the optimizer keeps in shards by every process (`shards`). Knows no batch and no loss.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from offbeat.durable import put_in_place
from offbeat.errors import WeightsError
from offbeat.learner.drift import DriftFit
from offbeat.learner.lora import as_metadata
from offbeat.learner.optimizer_state import decode_state, encode_state
from offbeat.learner.policy import Policy
from offbeat.learner.ranks import Ranks
from offbeat.learner.sharding import gathered, is_shard, local, rows
from offbeat.learner.shards import SHARDS, read_shards, write_shards

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "vocab.txt", "chat_template.jinja", "generation_config.json",
)  # fmt: skip


class Position(msgspec.Struct, frozen=True):
    """Where training stands: the learner's version (it fixes the learning rate), its run of skips, its drift."""

    version: int
    consecutive_skips: int
    drift: DriftFit = DriftFit()


def save_checkpoint(
    directory: Path, policy: Policy, optimizer: torch.optim.Optimizer, position: Position, ranks: Ranks
) -> str:
    """Write the files into `directory`, made where it is missing; return the SHA-256 of model.safetensors.

    A collective call where the policy is sharded. Raises WeightsError or OSError where the disk refuses.
    """
    tensors, optimizer_json = encode_state(policy.model, optimizer)
    if ranks.rank == 0:
        shutil.rmtree(directory / SHARDS, ignore_errors=True)  # of whoever wrote here before, in so many parts
    weights = gathered(policy.weights(), ranks) if policy.sharded else policy.weights()
    if policy.sharded:
        sharded = {name: tensor for name, tensor in tensors.items() if is_shard(tensor)}
        write_shards(directory, sharded)
        tensors = {name: tensor for name, tensor in tensors.items() if name not in sharded}
    if ranks.rank > 0:
        return ranks.broadcast(None).decode()
    directory.mkdir(parents=True, exist_ok=True)
    model_aside = _write_aside(directory / MODEL_FILE, weights, as_metadata(policy.adapter))
    digest = _digest(model_aside)
    metadata = {
        "format": "pt",
        "position": msgspec.json.encode(position).decode(),
        "optimizer": optimizer_json,
        "model_digest": digest,
    }
    os.rename(_write_aside(directory / OPTIMIZER_FILE, tensors, metadata), directory / OPTIMIZER_FILE)
    os.rename(model_aside, directory / MODEL_FILE)
    if policy.sharded:
        ranks.broadcast(digest.encode())
    return digest


def load_checkpoint(
    directory: Path, policy: Policy, optimizer: torch.optim.Optimizer, version: int | None = None
) -> Position:
    """Load both files into `policy` and `optimizer`.

    Raises WeightsError for damage, another shape or, where `version` is given, another version.
    """
    digest = load_weights(directory / MODEL_FILE, policy)
    file = directory / OPTIMIZER_FILE
    tensors, metadata = _read(file)
    try:
        position = msgspec.json.decode(metadata["position"], type=Position)
        optimizer_json, model_digest = metadata["optimizer"], metadata["model_digest"]
    except (KeyError, msgspec.DecodeError) as error:
        raise WeightsError(f"{file}: not an optimizer state of offbeat ({error})") from None
    if model_digest != digest:
        raise WeightsError(f"{file}: belongs to weights {model_digest[:12]}, not to {digest[:12]} beside it")
    if version is not None and position.version != version:
        raise WeightsError(f"{file}: is of version {position.version}, not {version}")
    decode_state(policy.model, optimizer, tensors | read_shards(directory, policy.model), optimizer_json)
    return position


def stored_weights(file: Path) -> dict[str, Any] | None:
    """Weights of a safetensors file by name, each to be read by its rows, or None where there is none to read."""
    try:
        opened: Any = safe_open(file, framework="pt")
    except (SafetensorError, OSError):
        return None
    return {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118


def load_weights(file: Path, policy: Policy) -> str:
    """Copy the weights of a safetensors file into `policy`; return the file's SHA-256.

    Raises WeightsError unless names, shapes and floating dtypes are exactly the policy's.
    """
    own = policy.weights()
    with _opened(file) as opened:
        names = set(opened.keys())
        missing, unknown = sorted(own.keys() - names), sorted(names - own.keys())
        if missing or unknown:
            raise WeightsError(f"weights {file}: {_names('missing', missing)}{_names('unknown', unknown)}")
        found = {name: _part(opened, name, tensor) for name, tensor in own.items()}
    for name, tensor in own.items():
        shape, part = found[name]
        if shape != tuple(tensor.shape) or part.dtype != tensor.dtype:
            raise WeightsError(
                f"weights {file}: {name} is {part.dtype} {shape}, the model has {tensor.dtype} {tuple(tensor.shape)}"
            )
    with torch.no_grad():
        for name, tensor in own.items():
            local(tensor).copy_(found[name][1])
    return _digest(file)


def save_base(directory: Path, policy: Policy) -> None:
    """Write the model's weights as one file, for adapters to be trained on."""
    os.rename(_write_aside(directory / MODEL_FILE, policy.whole_weights(), {"format": "pt"}), directory / MODEL_FILE)


def export_policy(directory: Path, policy: Policy, model_dir: Path, ranks: Ranks) -> None:
    """Write a Hugging Face directory: config, weights in float32, tokenizer files copied from `model_dir`;
    an adapter merged.

    It appears whole or not at all, in place of what was there. A collective call where the policy is sharded. Raises
    WeightsError or OSError where the disk refuses.
    """
    weights = gathered(policy.whole_weights(), ranks) if policy.sharded else policy.whole_weights()
    if ranks.rank > 0:
        return
    aside = directory.with_name(f".{directory.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for name in TOKENIZER_FILES:
        if (model_dir / name).is_file():
            shutil.copyfile(model_dir / name, aside / name)
    policy.config.save_pretrained(aside)
    os.rename(_write_aside(aside / MODEL_FILE, weights, {"format": "pt"}), aside / MODEL_FILE)
    shutil.rmtree(directory, ignore_errors=True)
    put_in_place(aside, directory)


def _read(file: Path) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    with _opened(file) as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata() or {}  # noqa: SIM118


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as opened:
            yield opened
    except FileNotFoundError:
        raise WeightsError(f"weights {file}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"weights {file}: damaged or not safetensors ({error})") from None


def _part(opened: Any, name: str, tensor: Tensor) -> tuple[tuple[int, ...], Tensor]:
    """A stored tensor's shape, and of its content what belongs to this process."""
    stored = opened.get_slice(name)
    shape, mine = tuple(stored.get_shape()), rows(tensor)
    if mine == slice(None) or shape != tuple(tensor.shape):
        return shape, opened.get_tensor(name)
    return shape, stored[mine] if mine.stop > mine.start else local(tensor)


def _names(what: str, names: list[str]) -> str:
    return f"{len(names)} {what} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}) " if names else ""


def _write_aside(file: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> Path:
    """Write a safetensors file under a name beside `file`; the caller renames it into place."""
    aside = file.with_name(f".{file.name}.writing")
    try:
        safetensors.torch.save_file(tensors, aside, metadata=metadata)
    except SafetensorError as error:
        raise WeightsError(f"weights {file}: cannot be written ({error})") from None
    return aside


def _digest(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
