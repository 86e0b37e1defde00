"""Earlier gradients and updates: what is kept of them, in which type and where, and how it gets into a state dict.

*Recycling invariant*: a vector that is taken over lies in the memory of the one it replaces, parameter by parameter,
so that the cost is the declared number of copies and not one more. Knows no rule and no optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from offbeat.align.products import Vector, local, wide

BUCKET = 1 << 24
"""Elements worked on at once: what is needed beside the gradients for a moment is no more than this."""


@dataclass(eq=False)
class Remembered:
    """A vector and its squared norm over all processes. A parameter that is missing stands for zeros."""

    parts: dict[Tensor, Tensor] = field(default_factory=dict)
    square: float = 0.0


class Memory:
    """Where vectors are kept. `dtype` None: as wide as products are made in."""

    def __init__(self, dtype: torch.dtype | None, offload: bool) -> None:
        self._dtype = dtype
        self._offload = offload

    def buffers(self, kept: Remembered, parameters: Sequence[Tensor], like: Vector) -> list[Tensor]:
        """Room in `kept` for the parts of these parameters, made where there is none."""
        for parameter in parameters:
            if parameter not in kept.parts or kept.parts[parameter].shape != like[parameter].shape:
                kept.parts[parameter] = self._room(like[parameter])
        return [kept.parts[parameter] for parameter in parameters]

    def take(self, kept: Remembered, vector: Vector, square: float = 0.0) -> None:
        """Let `kept` hold a copy of `vector`, and nothing else."""
        for bucket in buckets(vector):
            torch._foreach_copy_(self.buffers(kept, bucket, vector), [vector[p] for p in bucket])
        settle(kept, vector, square)

    def read(self, stored: Mapping[str, Any], parameters: Sequence[Tensor]) -> Remembered:
        """What `written` made. Raises ValueError where it belongs to other parameters."""
        tensors = stored["tensors"]
        if len(tensors) != len(parameters):
            raise ValueError(f"alignment state of {len(tensors)} parameters, the optimizer has {len(parameters)}")
        found = Remembered(square=float(stored["square"]))
        for parameter, tensor in zip(parameters, tensors, strict=True):
            if tensor is None:
                continue
            if tensor.shape != parameter.shape:
                raise ValueError(f"alignment state of shape {tuple(tensor.shape)} for {tuple(parameter.shape)}")
            part = _placed(tensor, parameter)
            found.parts[parameter] = self._room(part).copy_(part)
        return found

    def _room(self, part: Tensor) -> Tensor:
        dtype = self._dtype or (torch.float64 if part.dtype == torch.float64 else torch.float32)
        if self._offload:
            return torch.empty(part.shape, dtype=dtype, pin_memory=part.device.type == "cuda")
        return torch.empty_like(part, dtype=dtype)


def written(kept: Remembered, parameters: Sequence[Tensor]) -> dict[str, Any]:
    """For a state dict: a tensor per parameter in order, a DTensor where the parameter is one, None where missing."""
    return {"square": kept.square, "tensors": [_global(kept.parts.get(p), p) for p in parameters]}


def settle(kept: Remembered, vector: Vector, square: float) -> None:
    """`kept` holds `vector` now: forget the parameters that are not in it."""
    kept.parts = {parameter: kept.parts[parameter] for parameter in vector}
    kept.square = square


def buckets(vector: Vector) -> Iterator[list[Tensor]]:
    """The parameters of `vector` in lists of one device and at most BUCKET elements, or of one parameter."""
    bucket: list[Tensor] = []
    elements, device = 0, None
    for parameter, part in vector.items():
        if bucket and (elements + part.numel() > BUCKET or part.device != device):
            yield bucket
            bucket, elements = [], 0
        bucket.append(parameter)
        elements, device = elements + part.numel(), part.device
    if bucket:
        yield bucket


def rewrite(
    memory: Memory,
    gradients: Vector,
    along: Vector,
    *,
    own: float,
    other: float,
    raw: Remembered | None,
    applied: Remembered | None,
) -> None:
    """gradient <- own * gradient + other * along, in place. Before that it is copied into `raw`, after it into
    `applied`; either may be the vector `along` itself, which is read first."""
    for bucket in buckets(gradients):
        parts = [gradients[p] for p in bucket]
        added = [p for p in bucket if p in along] if other else []
        turns = torch._foreach_mul([wide(along[p], gradients[p].device) for p in added], other) if added else []
        if raw is not None:
            torch._foreach_copy_(memory.buffers(raw, bucket, gradients), parts)
        if own != 1:
            torch._foreach_mul_(parts, own)
        if added:
            _add([gradients[p] for p in added], list(turns))
        if applied is not None:
            torch._foreach_copy_(memory.buffers(applied, bucket, gradients), parts)


def _add(parts: list[Tensor], turns: list[Tensor]) -> None:
    """parts += turns, added up in the wider of both types."""
    if all(part.dtype == turn.dtype for part, turn in zip(parts, turns, strict=True)):
        torch._foreach_add_(parts, turns)
    else:
        torch._foreach_add_(turns, parts)
        torch._foreach_copy_(parts, turns)


def _global(part: Tensor | None, parameter: Tensor) -> Tensor | None:
    if part is None or not isinstance(parameter, DTensor):
        return part
    return DTensor.from_local(
        part, parameter.device_mesh, parameter.placements, run_check=False,
        shape=parameter.shape, stride=parameter.stride(),
    )  # fmt: skip


def _placed(tensor: Tensor, parameter: Tensor) -> Tensor:
    """This process's part of a stored tensor, whole or sharded, as `parameter` is sharded now."""
    if isinstance(parameter, DTensor):
        if not isinstance(tensor, DTensor):
            whole = tensor.to(parameter.device)
            tensor = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
        return local(tensor.redistribute(parameter.device_mesh, parameter.placements)).to(local(parameter).device)
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).to(parameter.device)
