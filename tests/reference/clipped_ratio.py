"""The loss as it was before there were several objectives, tensor by tensor: the default must not change by a bit."""

from __future__ import annotations

import torch
from torch import Tensor


def loss(
    target_logprobs: Tensor,
    behaviour_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float,
    clip_high: float,
    aggregation: str,
    normaliser: float,
) -> Tensor:
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
    return -total / normaliser
