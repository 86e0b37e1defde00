"""Cosines of gradients as an optimizer gets them: exact, not across a gap, and without a trace in the training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from offbeat.studies.instruments import GradientCosines, cosine


def step(parameter: nn.Parameter, optimizer: torch.optim.Optimizer, gradient: list[float]) -> None:
    parameter.grad = torch.tensor(gradient)
    optimizer.step()


def test_cosines_are_those_of_the_gradients_so_many_steps_apart() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    watch = GradientCosines(optimizer, lags=(1, 2))
    found = []
    for gradient in ([1.0, 0.0], [1.0, 1.0], [-1.0, 0.0], [0.0, 0.0]):
        step(parameter, optimizer, gradient)
        found.append(watch.take())
    root = 2**-0.5
    assert found[0] == {1: None, 2: None}
    assert found[1] == {1: pytest.approx(root), 2: None}
    assert found[2] == {1: pytest.approx(-root), 2: pytest.approx(-1.0)}
    assert found[3] == {1: None, 2: None}, "a gradient of 0 has no direction"


def test_nothing_is_compared_across_a_step_left_out() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    watch = GradientCosines(optimizer)
    step(parameter, optimizer, [1.0, 0.0])
    watch.take()
    assert watch.take() == {1: None}
    step(parameter, optimizer, [1.0, 0.0])
    assert watch.take() == {1: None}
    assert cosine(torch.tensor([float("nan")]), torch.tensor([1.0])) is None
