"""The loss of a micro-batch under any objective, and what is counted beside it.

*Micro-batch invariant*: the loss is a sum divided by a normaliser that the caller passes in, so the gradients of
the micro-batches of a mini-batch add up to the gradient of the whole. What an objective must know of the whole
mini-batch (`survey`) comes in as bounds. Knows no model, no records and no optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from offbeat.objectives import Aggregation, Bounds, Objective, Terms, Tokens


@dataclass(frozen=True, slots=True)
class ObjectiveStatistics:
    """Sums over the response tokens of one call, as 0-d float64 tensors; they add over micro-batches.

    `clipped` counts tokens that the objective clips, truncates or masks; `lag_kl_sum` sums the k3 estimates of
    KL(behaviour || target): r - 1 - log r with r = target / behaviour (J. Schulman, "Approximating KL divergence").
    `trajectories` [B, 4] float64 has for each trajectory its tokens, clipped tokens, k3 sum and sum of log r.
    """

    tokens: Tensor
    ratio_sum: Tensor
    ratio_max: Tensor
    clipped: Tensor
    lag_kl_sum: Tensor
    trajectories: Tensor


def normaliser(aggregation: Aggregation, tokens: int, trajectories: int, longest: int) -> int:
    """What the loss of a mini-batch of so many response tokens and trajectories is divided by.

    `longest` is the most response tokens that a trajectory may have.
    """
    return {"token": tokens, "sequence": trajectories, "constant": trajectories * longest}[aggregation]


def objective_loss(
    objective: Objective, tokens: Tokens, aggregation: Aggregation, normaliser: float, bounds: Bounds = ()
) -> tuple[Tensor, ObjectiveStatistics]:
    """The loss (0-d, to be minimised) and its statistics. `tokens.target_logprobs` [B, L] carries the gradient.

    With J the objective's surrogate of a token:
    `token`, `constant`: loss = -sum(J) / normaliser (response tokens, or trajectories x longest, of the mini-batch).
    `sequence`: loss = -sum over trajectories of (mean over its tokens of J) / normaliser, normaliser =
    trajectories of the whole mini-batch. Values outside the mask never matter, whatever they are.
    Raises ValueError for a wrong shape, dtype, aggregation or normaliser.
    """
    _check(tokens, normaliser)
    terms = objective.terms(tokens, bounds)
    surrogate = terms.surrogate.masked_fill(~tokens.mask, 0.0)
    if aggregation in ("token", "constant"):
        total = surrogate.sum()
    elif aggregation == "sequence":
        total = (surrogate.sum(dim=1) / tokens.mask.sum(dim=1).clamp(min=1)).sum()
    else:
        raise ValueError(f"aggregation {aggregation!r}: use 'token', 'sequence' or 'constant'")
    return -total / normaliser, _statistics(tokens, terms)


def survey(objective: Objective, parts: Iterable[Tokens]) -> Bounds:
    """The objective's bounds from all response tokens of a mini-batch, given in any number of parts."""
    flat: list[list[Tensor]] = []
    for part in parts:
        policies = (part.target_logprobs, part.proximal_logprobs, part.behaviour_logprobs)
        columns = (*policies, part.advantages.expand_as(part.target_logprobs))
        flat.append([column[part.mask].unsqueeze(1) for column in columns])
    target, proximal, behaviour, advantages = (torch.cat(columns) for columns in zip(*flat, strict=True))
    return objective.survey(Tokens(target, proximal, behaviour, advantages, torch.ones_like(target, dtype=torch.bool)))


@torch.no_grad()
def _statistics(tokens: Tokens, terms: Terms) -> ObjectiveStatistics:
    mask = tokens.mask
    log_ratio = tokens.target_to_behaviour()
    ratio, wide = log_ratio.exp(), log_ratio.double()
    clipped = terms.clipped & mask
    k3 = torch.expm1(wide) - wide
    return ObjectiveStatistics(
        tokens=mask.sum().double(),
        ratio_sum=(ratio.double() * mask).sum(),
        ratio_max=(ratio.double() * mask).max(),
        clipped=clipped.sum().double(),
        lag_kl_sum=k3.sum(),
        trajectories=torch.stack([mask.sum(1).double(), clipped.sum(1).double(), k3.sum(1), wide.sum(1)], dim=1),
    )


def _check(tokens: Tokens, normaliser: float) -> None:
    target = tokens.target_logprobs
    if target.dim() != 2 or target.numel() == 0:
        raise ValueError(f"target_logprobs has shape {tuple(target.shape)}; expected [B, L], neither of them 0")
    for name, tensor, shape in (
        ("proximal_logprobs", tokens.proximal_logprobs, target.shape),
        ("behaviour_logprobs", tokens.behaviour_logprobs, target.shape),
        ("mask", tokens.mask, target.shape),
        ("advantages", tokens.advantages, (*target.shape[:1], 1)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {tuple(shape)}")
    if tokens.mask.dtype != torch.bool:
        raise ValueError(f"mask has dtype {tokens.mask.dtype}; expected torch.bool")
    for name, tensor in (
        ("target_logprobs", target),
        ("proximal_logprobs", tokens.proximal_logprobs),
        ("behaviour_logprobs", tokens.behaviour_logprobs),
        ("advantages", tokens.advantages),
    ):
        if not tensor.is_floating_point() or tensor.dtype != target.dtype:
            raise ValueError(f"{name} has dtype {tensor.dtype}; expected the floating dtype of target_logprobs")
        if tensor.requires_grad and tensor is not target:
            raise ValueError(f"{name} is data: it must not require a gradient")
    if not normaliser > 0:
        raise ValueError(f"normaliser = {normaliser}; expected a positive number")
