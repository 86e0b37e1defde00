"""Stacked networks: one multilayer perceptron for each of A agents, evaluated together. *Agents share nothing but
the call.*

Parameters are a list [W1, b1, W2, b2, ...] with W (A, in, out) and b (A, 1, out); an input is (A, B, in), a batch
for each agent. Sums of losses over agents have gradients that are each agent's own, and Adam is elementwise, so one
optimizer trains all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

Params = list[Tensor]


def stacked(seeds: Sequence[int], widths: Sequence[int]) -> Params:
    """Parameters for len(seeds) agents, uniform on +-1/sqrt(in) as torch.nn.Linear; agent i's depend on seeds[i]
    only.
    """
    layers: list[list[Tensor]] = [[] for _ in range(2 * (len(widths) - 1))]
    for seed in seeds:
        rng = torch.Generator().manual_seed(seed)
        for k, (into, out) in enumerate(pairwise(widths)):
            bound = into**-0.5
            layers[2 * k].append(torch.empty(into, out).uniform_(-bound, bound, generator=rng))
            layers[2 * k + 1].append(torch.empty(1, out).uniform_(-bound, bound, generator=rng))
    return [torch.stack(layer) for layer in layers]


def forward(params: Sequence[Tensor], x: Tensor, unit: Callable[[Tensor], Tensor] = torch.relu_) -> Tensor:
    """(A, B, in) -> (A, B, out): hidden layers of `unit`s, rectified where none is given, and a linear output."""
    last = len(params) - 2
    for k in range(0, len(params), 2):
        x = torch.baddbmm(params[k + 1], x, params[k])
        if k < last:
            x = unit(x)
    return x


def trained(params: Params) -> Params:
    """The same tensors, as leaves that ask for gradients."""
    return [p.requires_grad_() for p in params]


def frozen(params: Params) -> Params:
    """Detached views of the same memory."""
    return [p.detach() for p in params]


def copied(params: Params) -> Params:
    """Independent copies, no gradients: target networks."""
    return [p.detach().clone() for p in params]


def follow(target: Params, online: Params, tau: float) -> None:
    """Polyak averaging in place: target <- (1 - tau) target + tau online."""
    torch._foreach_lerp_(target, frozen(online), tau)
