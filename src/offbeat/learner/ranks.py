"""Several processes train one policy: each takes some of an update's micro-batches, and sums are added up.

*Same-numbers invariant*: the micro-batches are those of one process, whoever takes which, and gradients and statistics
are sums over them; so an update differs from one process's by the order of additions alone. Where every process holds
all parameters (data parallel, as DDP, which itself wants as many backward passes of everybody) each takes the same step
bit for bit: nothing has to be shared afterwards. Where each holds a part (`sharding`) they make their passes together,
as many of everybody. Knows no model and no loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

T = TypeVar("T")


class Ranks:
    """This process among `count`: alone without a process group."""

    def __init__(self) -> None:
        grouped = dist.is_available() and dist.is_initialized()
        self.rank, self.count = (dist.get_rank(), dist.get_world_size()) if grouped else (0, 1)

    def mine(self, sizes: Sequence[int]) -> list[bool]:
        """Which of these pieces of work are this process's: the largest first, each to whom has least so far."""
        loads = [0] * self.count
        takers = [0] * len(sizes)
        for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
            takers[index] = min(range(self.count), key=lambda rank: (loads[rank], rank))
            loads[takers[index]] += sizes[index]
        return [taker == self.rank for taker in takers]

    def together(self, sizes: Sequence[int]) -> list[list[int | None]]:
        """These pieces of work in rounds of one, or None, for each process: those of a round are alike in size."""
        by_size = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
        order = [*by_size, *[None] * (-len(sizes) % self.count)]
        return [order[first : first + self.count] for first in range(0, len(order), self.count)]

    def in_turn(self, make: Callable[[], T]) -> T:
        """What `make` gives, of one process after the other: so that what it needs meanwhile is needed once. A
        collective call."""
        for turn in range(self.count):
            if turn == self.rank:
                made = make()
            if self.count > 1:
                dist.barrier()
        return made

    def total(self, part: Tensor) -> Tensor:
        """The sum over all processes, the same bits on each. A collective call."""
        if self.count > 1:
            dist.all_reduce(part)
        return part

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Every gradient becomes the sum of all processes'; one that nobody has stays missing. A collective call."""
        if self.count == 1:
            return
        known = self.total(torch.tensor([float(p.grad is not None) for p in parameters])).tolist()
        used = [parameter for parameter, holders in zip(parameters, known, strict=True) if holders]
        for parameter in used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in used if parameter.grad is not None]
        sums = self.total(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, part in zip(gradients, torch.split(sums, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def broadcast(self, data: bytes | None) -> bytes:
        """What process 0 gives, on all of them. A collective call."""
        size = torch.tensor([len(data) if data is not None else 0])
        dist.broadcast(size, src=0)
        content = torch.empty(int(size), dtype=torch.uint8)
        if data is not None:
            content.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(content, src=0)
        return content.numpy().tobytes()
