"""GRPO with the behaviour policy explicit: the clipped ratio of target to behaviour, one pure function.

*Micro-batch invariant*: the loss is a sum divided by a normaliser that the caller passes in, so the gradients of
the micro-batches of a mini-batch add up to the gradient of the whole.
Source: GRPO, DeepSeekMath (arXiv 2402.03300) eq. 3, without its KL-to-reference term; the clip is PPO's
(arXiv 1707.06347, eq. 7) with separate bounds. Knows no model, no records and no optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True)
class ObjectiveStatistics:
    """Sums over the response tokens of one call, as 0-d float64 tensors; they add over micro-batches.

    `clipped` counts tokens whose gradient the clip removes; `lag_kl_sum` sums the k3 estimates of
    KL(behaviour || target): r - 1 - log r with r = target / behaviour (J. Schulman, "Approximating KL divergence").
    """

    tokens: Tensor
    ratio_sum: Tensor
    ratio_max: Tensor
    clipped: Tensor
    lag_kl_sum: Tensor


def normaliser(aggregation: Aggregation, tokens: int, trajectories: int) -> int:
    """What the loss of a mini-batch of so many response tokens and trajectories is divided by."""
    return tokens if aggregation == "token" else trajectories


def grpo_objective(
    target_logprobs: Tensor,
    behaviour_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    aggregation: Aggregation,
    normaliser: float,
) -> tuple[Tensor, ObjectiveStatistics]:
    """The loss (0-d, to be minimised) and its statistics.

    `target_logprobs` [B, L] (carries the gradient), `behaviour_logprobs` [B, L], `advantages` [B], `mask` [B, L]
    bool: true at response tokens. Per token, with r = exp(target - behaviour):

        J = min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

    `token`: loss = -sum(J) / normaliser, normaliser = response tokens of the whole mini-batch.
    `sequence`: loss = -sum over trajectories of (mean over its tokens of J) / normaliser, normaliser =
    trajectories of the whole mini-batch. Values outside the mask never matter, whatever they are.
    Raises ValueError for a wrong shape, dtype or normaliser.
    """
    _check(target_logprobs, behaviour_logprobs, advantages, mask, normaliser)
    log_ratio = (target_logprobs - behaviour_logprobs).masked_fill(~mask, 0.0)
    ratio = log_ratio.exp()
    advantage = advantages.unsqueeze(1)
    clipped_ratio = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    surrogate = torch.minimum(ratio * advantage, clipped_ratio * advantage).masked_fill(~mask, 0.0)
    if aggregation == "token":
        total = surrogate.sum()
    elif aggregation == "sequence":
        total = (surrogate.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).sum()
    else:
        raise ValueError(f"aggregation {aggregation!r}: use 'token' or 'sequence'")
    with torch.no_grad():
        removed = ((advantage > 0) & (ratio > 1.0 + clip_high)) | ((advantage < 0) & (ratio < 1.0 - clip_low))
        wide = log_ratio.double()
        statistics = ObjectiveStatistics(
            tokens=mask.sum().double(),
            ratio_sum=(ratio.double() * mask).sum(),
            ratio_max=(ratio.double() * mask).max(),
            clipped=(removed & mask).sum().double(),
            lag_kl_sum=(torch.expm1(wide) - wide).sum(),
        )
    return -total / normaliser, statistics


def _check(target: Tensor, behaviour: Tensor, advantages: Tensor, mask: Tensor, normaliser: float) -> None:
    if target.dim() != 2 or target.numel() == 0:
        raise ValueError(f"target_logprobs has shape {tuple(target.shape)}; expected [B, L], neither of them 0")
    for name, tensor, shape in (
        ("behaviour_logprobs", behaviour, target.shape),
        ("mask", mask, target.shape),
        ("advantages", advantages, target.shape[:1]),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {tuple(shape)}")
    if mask.dtype != torch.bool:
        raise ValueError(f"mask has dtype {mask.dtype}; expected torch.bool")
    for name, tensor in (("target_logprobs", target), ("behaviour_logprobs", behaviour), ("advantages", advantages)):
        if not tensor.is_floating_point() or tensor.dtype != target.dtype:
            raise ValueError(f"{name} has dtype {tensor.dtype}; expected the floating dtype of target_logprobs")
    if behaviour.requires_grad or advantages.requires_grad:
        raise ValueError("behaviour_logprobs and advantages are data: they must not require a gradient")
    if not normaliser > 0:
        raise ValueError(f"normaliser = {normaliser}; expected a positive number")
