"""The expected gradient without sampling, against the learner's own loss over every group that could be sampled."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from offbeat.learner.advantage import group_advantages
from offbeat.learner.objective import objective_loss
from offbeat.objectives import Grpo, Tokens
from offbeat.studies.surrogate import clipped, closed, expected_advantages

VOCABULARY, LONGEST, SIZE = 3, 2, 3
END = 0
RESPONSES = [(END,), *product((1, 2), (END, 1, 2))]
"""All that can be sampled in at most two tokens."""
GOLD = (1, 2)
CLIP = (0.8, 1.2)


def logprobs(logits: Tensor) -> Tensor:
    """[7, 2]: log-probs of each response's tokens, 0 beyond its end. logits [3, 3]: at the start, after 1, after 2."""
    table = torch.log_softmax(logits, dim=-1)
    rows = []
    for response in RESPONSES:
        first, rest = response[0], response[1:]
        rows.append(torch.stack([table[0, first], table[first, rest[0]] if rest else torch.zeros(())]))
    return torch.stack(rows)


def policies(apart: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(theta with gradient, phi): logits of policies that are this far apart."""
    torch.manual_seed(seed)
    phi = torch.randn(VOCABULARY, VOCABULARY, dtype=torch.float64)
    return (phi + apart * torch.randn_like(phi)).requires_grad_(), phi


def enumerated(theta: Tensor, phi: Tensor) -> Tensor:
    """The mean over every group of SIZE responses of the gradient of GRPO's loss on it: the definition of H."""
    target, behaviour = logprobs(theta), logprobs(phi)
    mask = torch.tensor([[True, len(response) > 1] for response in RESPONSES])
    total = torch.zeros((), dtype=torch.float64)
    for group in product(range(len(RESPONSES)), repeat=SIZE):
        rows = list(group)
        rewards = [float(RESPONSES[row] == GOLD) for row in rows]
        advantages = torch.tensor(group_advantages(rewards), dtype=torch.float64).unsqueeze(1)
        tokens = Tokens(target[rows], target[rows].detach(), behaviour[rows], advantages, mask[rows])
        loss, _ = objective_loss(Grpo(), tokens, "constant", SIZE * LONGEST)
        total = total + behaviour[rows].sum().exp() * loss
    return torch.autograd.grad(total, theta)[0]


def in_closed_form(theta: Tensor, phi: Tensor) -> Tensor:
    """The same from the gold response, and every wrong one as often as phi gives it."""
    target, behaviour = logprobs(theta), logprobs(phi)
    gold = [RESPONSES.index(GOLD)]
    chance = behaviour.sum(1).exp()
    _, minus = expected_advantages(chance[gold], SIZE)
    weights = chance * minus / LONGEST
    weights[gold] = 0.0
    loss = closed(target[gold], behaviour[gold], SIZE, CLIP, 1 / LONGEST) + clipped(target, behaviour, weights, CLIP)
    return torch.autograd.grad(loss, theta)[0]


@pytest.mark.parametrize("apart", [0.0, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_closed_form_law(apart: float, seed: int) -> None:
    """Also where most tokens are beyond the clip."""
    expected = enumerated(*policies(apart, seed))
    assert float(expected.norm()) > 1e-3
    torch.testing.assert_close(in_closed_form(*policies(apart, seed)), expected, rtol=1e-9, atol=1e-12)


def test_the_part_that_is_sampled_is_needed() -> None:
    theta, phi = policies(1.0)
    target, behaviour = logprobs(theta), logprobs(phi)
    gold = [RESPONSES.index(GOLD)]
    alone = torch.autograd.grad(closed(target[gold], behaviour[gold], SIZE, CLIP, 1 / LONGEST), theta)[0]
    whole = enumerated(theta, phi)
    assert float((alone - whole).norm()) > 0.01 * float(whole.norm())


def test_expected_advantages_of_sure_things() -> None:
    plus, minus = expected_advantages(torch.tensor([0.0, 1.0]), 4)
    alone = group_advantages([1.0, 0.0, 0.0, 0.0])
    assert plus.tolist() == pytest.approx([alone[0], 0.0])
    assert minus.tolist() == pytest.approx([0.0, group_advantages([1.0, 1.0, 1.0, 0.0])[-1]])
