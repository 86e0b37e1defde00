"""What of an optimizer's state is sharded, on disk: a directory beside its file, where every process writes its part.

By `torch.distributed.checkpoint`, as safetensors files, without pickle. *Any-number invariant*: what so many processes
wrote any other number reads, each its own rows; with one process they are whole. Knows no optimizer.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from offbeat.errors import WeightsError
from offbeat.learner.sharding import blank, is_shard

SHARDS = "shards"


def write_shards(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write DTensors by name. A collective call. Raises WeightsError where the disk refuses."""
    place = directory / SHARDS
    place.mkdir(parents=True, exist_ok=True)
    writer = HuggingFaceStorageWriter(str(place), save_distributed=True)
    try:
        save(dict(tensors), storage_writer=writer)
    except (CheckpointException, OSError) as error:
        raise WeightsError(f"weights {place}: cannot be written ({_reason(error)})") from None


def read_shards(directory: Path, model: nn.Module) -> dict[str, Tensor]:
    """Tensors by name, sharded as the model is, whole where it is not; none where none were written.

    A collective call where the model is sharded. Raises WeightsError for damage.
    """
    place = directory / SHARDS
    if not place.is_dir():
        return {}
    of = next((parameter for parameter in model.parameters() if is_shard(parameter)), None)
    reader = HuggingFaceStorageReader(str(place))
    try:
        tensors = {
            name: _room(stored, of)
            for name, stored in reader.read_metadata().state_dict_metadata.items()
            if isinstance(stored, TensorStorageMetadata)
        }
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # that there is one process only
            load(tensors, storage_reader=reader, no_dist=of is None)
    except (CheckpointException, SafetensorError, OSError, KeyError) as error:
        raise WeightsError(f"weights {place}: damaged ({_reason(error)})") from None
    return tensors


def _room(stored: TensorStorageMetadata, of: Tensor | None) -> Tensor:
    shape, dtype = stored.size, stored.properties.dtype
    return torch.empty(shape, dtype=dtype) if of is None else blank(shape, dtype, of)


def _reason(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)
