"""From a version's file to weights the engine computes with: full ones as they are, adapters merged into the base.

The base model is read once, when the first adapter comes. What all adapters leave alone is held once.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from offbeat.rollout.adapters import adapter_of, merged, read_adapter
from offbeat.rollout.config import ModelShape
from offbeat.rollout.weights import VersionWeights, folded, read_tensors, read_weights, refolded

BASE = "model.safetensors"


class VersionReader:
    """Reads versions of the model in `model_dir`, whose own weights are the base of adapters."""

    def __init__(self, model_dir: Path, shape: ModelShape) -> None:
        self._base_file = model_dir / BASE
        self._shape = shape
        self._base: tuple[dict[str, Tensor], VersionWeights] | None = None

    def read(self, path: Path) -> VersionWeights:
        """Raises WeightsError for a damaged file and what does not fit the model."""
        if adapter_of(path) is None:
            return read_weights(path, self._shape)
        if self._base is None:
            digest, named = read_tensors(self._base_file, self._shape)
            self._base = named, replace(folded(digest, named, self._shape), layers=())
        named, base = self._base
        digest, adapter, tensors = read_adapter(path, self._shape, base.digest)
        return refolded(digest, merged(named, self._shape, adapter, tensors), self._shape, base)
