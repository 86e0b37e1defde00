"""The control experiment of GAC: as much shrinking, as much turning, but into a random direction.

If this trains as well as the projection, the direction explains nothing. Every process draws the same numbers for what
is replicated and different ones for different shards. Knows no optimizer and no regime.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from offbeat.align.memory import Remembered
from offbeat.align.products import Vector, squares_and_products
from offbeat.align.rule import kept


def random_turn(
    gradients: Vector,
    reference: Remembered,
    cosine: float,
    gain: float,
    sums: tuple[float, float],
    seeds: tuple[int, int],
    shards: dist.ProcessGroup | None,
) -> tuple[float, float, dict[Tensor, Tensor], float | None]:
    """(own, other, along, cosine with the reference afterwards) of own * gradient + other * along.

    `sums` are <g, g> and <g, reference>. The result has the norm of the controlled gradient and its angle to g, in a
    plane with a direction drawn at random.
    """
    square, product = sums
    noise = {p: _noise(p, g, (*seeds, index), shards) for index, (p, g) in enumerate(gradients.items())}
    own_square, with_gradient, with_reference = squares_and_products(noise, [gradients, reference.parts], shards)
    share = kept(cosine, gain)
    straight = (gain * cosine * cosine + 1 - cosine * cosine) / share if share > 0 else 0.0
    sideways = math.sqrt(max(0.0, 1 - straight * straight))
    across = math.sqrt(max(0.0, own_square - with_gradient * with_gradient / square))
    other = share * math.sqrt(square) * sideways / across if across > 0 else 0.0
    own = share * straight - other * with_gradient / square
    norm = share * math.sqrt(square) * math.sqrt(reference.square)
    after = (own * product + other * with_reference) / norm if norm > 0 else None
    return own, other, noise, after


def _noise(
    parameter: Tensor, gradient: Tensor, seeds: tuple[int, int, int], shards: dist.ProcessGroup | None
) -> Tensor:
    """Standard normal numbers of the shape of this process's part, the same wherever that part is replicated."""
    place: tuple[int, ...] = ()
    if isinstance(parameter, DTensor):
        coordinates = parameter.device_mesh.get_coordinate() or ()
        pairs = zip(coordinates, parameter.placements, strict=True)
        place = tuple(coordinate for coordinate, placement in pairs if not placement.is_replicate())
    elif shards is not None:
        place = (dist.get_rank(shards),)
    generator = torch.Generator(gradient.device)
    generator.manual_seed(hash((*seeds, place)) & 0x7FFFFFFFFFFFFFFF)
    dtype = torch.float64 if gradient.dtype == torch.float64 else torch.float32
    return torch.randn(gradient.shape, generator=generator, device=gradient.device, dtype=dtype)
