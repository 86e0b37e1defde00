"""Parameters in parts: each process holds some rows of each, of its gradient and of its optimizer state (FSDP2).

A layer's parameters are gathered for its forward and its backward pass and let go after each; gradients are added up
over the processes and each keeps its rows. *Same-rows invariant*: what belongs to a parameter is cut as the parameter
is, by rows, so everything but a product of whole parameters is done on `local` parts. Source: PyTorch FSDP2
(`torch.distributed.fsdp.fully_shard`). Knows no batch, no loss and no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from offbeat.learner.ranks import Ranks


def shard(model: nn.Module, layers: Sequence[nn.Module], ranks: Ranks) -> None:
    """Leave of each parameter this process's rows. Nothing is said to the others: all of them do it alike.

    What each of the `layers` holds is gathered by itself, the rest of the model together; the outermost module, too,
    lets go of what it gathered, for it may be changed before the next pass.
    """
    mesh = init_device_mesh("cpu", (ranks.count,))
    for module in (*layers, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):  # sums, as one process adds up its micro-batches
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def is_shard(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """This process's rows, sharing their memory; all of a tensor that is not sharded."""
    part: Tensor = tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()
    return part


def whole(tensor: Tensor) -> Tensor:
    """All rows. A collective call where the tensor is sharded."""
    all_of_it: Tensor = tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach()
    return all_of_it


def gathered(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """All rows of each, for the first process only. A collective call."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        made = whole(tensor)
        if ranks.rank == 0:
            found[name] = made
    return found


def rows(parameter: Tensor) -> slice:
    """Which rows of the whole are this process's."""
    if not isinstance(parameter, DTensor):
        return slice(None)
    return _mine(parameter.shape[0], parameter.device_mesh)


def _mine(count: int, mesh: DeviceMesh) -> slice:
    """This process's of so many rows, as FSDP2 cuts them."""
    size = -(-count // mesh.size())
    first = min(count, size * mesh.get_local_rank())
    return slice(first, min(count, first + size))


def like(part: Tensor, parameter: Tensor) -> Tensor:
    """This process's rows of something as what they are rows of: sharded where the parameter is."""
    if not isinstance(parameter, DTensor):
        return part
    return DTensor.from_local(
        part, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
        stride=parameter.stride(),
    )  # fmt: skip


def blank(shape: torch.Size, dtype: torch.dtype, parameter: Tensor) -> Tensor:
    """Room for a tensor of this shape, sharded over the processes of `parameter` by rows."""
    assert isinstance(parameter, DTensor)
    mesh = parameter.device_mesh
    mine = _mine(shape[0], mesh)
    part = torch.empty((mine.stop - mine.start, *shape[1:]), dtype=dtype)
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)


def gradient_norm(parameters: Sequence[nn.Parameter], ranks: Ranks) -> Tensor:
    """The norm of all gradients, the same bits on every process. A collective call where they are sharded."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not any(map(is_shard, gradients)):
        return torch.nn.utils.get_total_norm(gradients)
    squares = [local(gradient).double().square().sum() for gradient in gradients]
    return ranks.total(torch.stack(squares).sum()).sqrt().float()


def clip_gradients(parameters: Sequence[nn.Parameter], most: float, norm: Tensor) -> None:
    """Scale all gradients so that their norm, now `norm`, is `most` at most, as torch's own function does."""
    if not any(parameter.grad is not None and is_shard(parameter.grad) for parameter in parameters):
        torch.nn.utils.clip_grads_with_norm_(parameters, most, norm)
        return
    share = torch.clamp(most / (norm + 1e-6), max=1.0)
    torch._foreach_mul_([local(parameter.grad) for parameter in parameters if parameter.grad is not None], share)
