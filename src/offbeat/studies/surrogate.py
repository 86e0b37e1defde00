"""H(theta, phi), the expected gradient at theta of GRPO's surrogate over data of phi, without the noise of sampling.

Where a reward is 1 for one response, the gold one, and 0 for all others, the others need not be sampled: at each
prefix E_phi[r grad log pi_theta] = sum over tokens of grad pi_theta = 0 with r = pi_theta / pi_phi, so what all
responses contribute without the clip is 0, and what the wrong ones do is minus what the gold one does. What is left to
sampling are tokens of wrong responses that the clip takes out. Advantages follow from the number of gold responses in
a group, which is binomial. (The map and its bias: arXiv 2607.01083. That it can be had so is ours.)
*Closed-form law*: the gradient of `closed` + `clipped` is in expectation that of the learner's step on phi's groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from offbeat.learner.advantage import group_advantages


def expected_advantages(gold_probability: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Expected advantage of a gold and of a wrong response, given that it is one: [B] each, from pi_phi(gold) [B].

    The other size - 1 of its group are gold independently, each with that probability.
    """
    plus = [group_advantages([1.0] * n + [0.0] * (size - n))[0] for n in range(1, size + 1)]
    minus = [group_advantages([1.0] * n + [0.0] * (size - n))[-1] for n in range(size)]
    p = gold_probability.double()
    others = size - 1
    chances = torch.stack([math.comb(others, n) * p**n * (1 - p) ** (others - n) for n in range(size)])
    return torch.tensor(plus, dtype=torch.float64) @ chances, torch.tensor(minus, dtype=torch.float64) @ chances


def closed(target: Tensor, behaviour: Tensor, size: int, clip: tuple[float, float], weight: float) -> Tensor:
    """The part known in closed form, to be minimised: `weight` times the sum over prompts of what one response to each
    is expected to add to the loss. For the aggregation `constant` the weight is 1 / (prompts x longest response).

    target, behaviour [B, L]: log-probs of the gold responses' tokens under theta (carries the gradient) and phi, 0
    beyond their ends. `clip`: the bounds of the ratio.
    """
    ratio = (target - behaviour).exp().detach().double()
    p = behaviour.double().sum(1).exp()
    plus, minus = expected_advantages(p, size)
    kept = ratio * (ratio <= clip[1])
    factor = p.unsqueeze(1) * (plus.unsqueeze(1) * kept - minus.unsqueeze(1) * ratio)
    return -weight * (factor * target).sum()


def clipped(target: Tensor, behaviour: Tensor, weights: Tensor, clip: tuple[float, float]) -> Tensor:
    """What the clip takes out of wrong responses, to be added to `closed`.

    target, behaviour [N, L]: log-probs of responses' tokens under theta and phi. weights [N]: for each response the
    expected advantage of a wrong one to its prompt, 0 for a gold one, which `closed` has, times what it counts: for
    samples of phi 1 / (N x longest response).
    """
    ratio = (target - behaviour).exp().detach().double()
    taken = ratio * (ratio < clip[0])
    return (weights.unsqueeze(1) * taken * target).sum()


def squared_norm(vectors: Sequence[Tensor]) -> tuple[float, float]:
    """||E v||^2 without bias from independent vectors [K of P], K >= 3, and its standard error.

    The estimate is the mean product of two different vectors; it may come out negative. The error is the jackknife's
    (Tukey 1958), leaving out one vector at a time; where noise is all there is it is sqrt(2) too large.
    """
    stacked = torch.stack(list(vectors)).double()
    products = stacked @ stacked.T
    products.fill_diagonal_(0.0)
    count, total, each = len(vectors), float(products.sum()), products.sum(0)
    without = (total - 2 * each) / ((count - 1) * (count - 2))
    error = math.sqrt((count - 1) / count * float((without - without.mean()).square().sum()))
    return total / (count * (count - 1)), error
