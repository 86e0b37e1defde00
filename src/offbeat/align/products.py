"""Inner products of gradients that may be sharded over processes: every element counted once, one sum per group.

*Sharding invariant*: the numbers are those of the whole vectors, on every process alike. A DTensor is reduced over the
mesh dimensions it is sharded on and over no other, so what is replicated counts once; plain tensors are whole (as
under DDP) unless a group is named over which they are shards.
Products of low precision are made and added up in float32, chunk by chunk, and the chunks in float64.
Knows no rule, no optimizer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

CHUNK = 1 << 18
"""Elements added up in one go before the sum is taken over in float64."""

Vector: TypeAlias = Mapping[Tensor, Tensor]
"""Parameter -> this process's part of what belongs to it. A parameter that is missing counts as zeros."""


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def groups_of(tensor: Tensor, shards: dist.ProcessGroup | None) -> tuple[dist.ProcessGroup, ...]:
    """The process groups over which sums of `tensor` must be added up.

    Raises ValueError for a DTensor that holds a pending sum.
    """
    if not isinstance(tensor, DTensor):
        return (shards,) if shards is not None else ()
    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError("a gradient has a partial placement: reduce it before the optimizer step")
    mesh = tensor.device_mesh
    return tuple(
        mesh.get_group(dimension)
        for dimension, placement in enumerate(tensor.placements)
        if not placement.is_replicate()
    )


def squares_and_products(
    left: Vector, rights: Sequence[Vector], shards: dist.ProcessGroup | None = None
) -> list[float]:
    """[<left, left>, <left, rights[0]>, <left, rights[1]>, ...] over all parameters and processes.

    A collective call where anything is sharded: all processes of those groups must make it.
    """
    parts: dict[tuple[tuple[dist.ProcessGroup, ...], torch.device], list[Tensor]] = defaultdict(list)
    for parameter, tensor in left.items():
        row = [dot(tensor, tensor)]
        for right in rights:
            other = right.get(parameter)
            row.append(torch.zeros_like(row[0]) if other is None else dot(tensor, other))
        parts[groups_of(parameter, shards), tensor.device].extend(row)
    totals = [0.0] * (1 + len(rights))
    for (groups, _), entries in parts.items():
        sums = torch.stack(entries).view(-1, len(totals)).sum(dim=0)
        for group in groups:
            dist.all_reduce(sums, group=group)
        totals = [total + value for total, value in zip(totals, sums.tolist(), strict=True)]
    return totals


def dot(left: Tensor, right: Tensor) -> Tensor:
    """<left, right> of one process's parts, 0-d, on the device of `left`: float64 where the device knows it."""
    exact = torch.float32 if left.device.type == "mps" else torch.float64
    total = None
    chunks = zip(torch.split(left.reshape(-1), CHUNK), torch.split(right.reshape(-1), CHUNK), strict=True)
    for a, b in chunks:
        part = torch.dot(wide(a), wide(b, left.device)).to(exact)
        total = part if total is None else total + part
    return torch.zeros((), dtype=exact, device=left.device) if total is None else total


def wide(tensor: Tensor, device: torch.device | None = None) -> Tensor:
    """The tensor in at least float32, on `device`."""
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return tensor.to(device or tensor.device, dtype)
