"""The clipped objective against its formula, its gradients under micro-batching and on policy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from offbeat.learner.objective import grpo_objective, normaliser
from tests.reference import grpo


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    logprob = st.floats(-4, 0)
    ragged = {
        name: [draw(st.lists(logprob, min_size=n, max_size=n)) for n in lengths] for name in ("target", "behaviour")
    }
    advantages = draw(st.lists(st.floats(-3, 3), min_size=len(lengths), max_size=len(lengths)))
    return {**ragged, "advantages": advantages}


def padded(ragged: list[list[float]], fill: float) -> tuple[Tensor, Tensor]:
    width = max(map(len, ragged)) + 1
    rows = torch.tensor([row + [fill] * (width - len(row)) for row in ragged], dtype=torch.float64)
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in ragged])
    return rows, mask


def call(problem: dict[str, Any], aggregation: Any, divisor: float | None = None) -> tuple[Tensor, Tensor, Any]:
    target, mask = padded(problem["target"], 7.0)
    behaviour, _ = padded(problem["behaviour"], float("nan"))
    target.requires_grad_(True)
    divisor = divisor or normaliser(aggregation, int(mask.sum()), len(mask))
    loss, statistics = grpo_objective(
        target, behaviour, torch.tensor(problem["advantages"], dtype=torch.float64), mask,
        clip_low=0.2, clip_high=0.3, aggregation=aggregation, normaliser=divisor,
    )  # fmt: skip
    loss.backward()
    assert target.grad is not None
    return loss.detach(), target.grad, statistics


@given(problems(), st.sampled_from(["token", "sequence"]))
def test_agrees_with_the_formula_whatever_the_padding_holds(problem: dict[str, Any], aggregation: str) -> None:
    loss, gradient, statistics = call(problem, aggregation)
    expected = grpo.loss(problem["target"], problem["behaviour"], problem["advantages"], 0.2, 0.3, aggregation)
    assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    _, mask = padded(problem["target"], 0)
    assert (gradient[~mask] == 0).all()
    sums = grpo.statistics(problem["target"], problem["behaviour"], problem["advantages"], 0.2, 0.3)
    for name, value in sums.items():
        assert getattr(statistics, name).item() == pytest.approx(value, rel=1e-9, abs=1e-9), name


@given(problems(), st.sampled_from(["token", "sequence"]))
def test_gradients_of_micro_batches_add_up_to_the_whole(problem: dict[str, Any], aggregation: str) -> None:
    whole_loss, whole, _ = call(problem, aggregation)
    _, mask = padded(problem["target"], 0)
    divisor = normaliser(aggregation, int(mask.sum()), len(mask))  # type: ignore[arg-type]
    total = 0.0
    for index in range(len(problem["target"])):
        part = {name: values[index : index + 1] for name, values in problem.items()}
        loss, gradient, _ = call(part, aggregation, divisor)
        total += loss.item()
        width = len(problem["target"][index])
        torch.testing.assert_close(gradient[0, :width], whole[index, :width])
    assert total == pytest.approx(whole_loss.item(), rel=1e-9, abs=1e-12)


@given(problems(), st.sampled_from(["token", "sequence"]))
def test_on_policy_gradient_is_that_of_reinforce(problem: dict[str, Any], aggregation: str) -> None:
    problem = {**problem, "behaviour": problem["target"]}
    _, gradient, statistics = call(problem, aggregation)
    count = sum(map(len, problem["target"]))
    for row, (targets, advantage) in enumerate(zip(problem["target"], problem["advantages"], strict=True)):
        share = 1 / count if aggregation == "token" else 1 / (len(targets) * len(problem["target"]))
        for column in range(len(targets)):
            assert gradient[row, column].item() == pytest.approx(-advantage * share, rel=1e-9, abs=1e-12)
    assert statistics.ratio_max.item() == 1.0
    assert statistics.lag_kl_sum.item() == 0.0
    assert statistics.clipped.item() == 0.0


def test_clip_removes_the_gradient_on_the_far_side_only() -> None:
    problem = {
        "target": [[0.0], [0.0], [-2.0], [-2.0]],
        "behaviour": [[-1.0], [-1.0], [-1.0], [-1.0]],
        "advantages": [1.0, -1.0, 1.0, -1.0],
    }
    _, gradient, statistics = call(problem, "token")
    assert (gradient[:, 0] != 0).tolist() == [False, True, True, False]
    assert statistics.clipped.item() == 2


GOOD = {
    "target_logprobs": torch.zeros(2, 3), "behaviour_logprobs": torch.zeros(2, 3), "advantages": torch.zeros(2),
    "mask": torch.ones(2, 3, dtype=torch.bool), "clip_low": 0.2, "clip_high": 0.2, "aggregation": "token",
    "normaliser": 6,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_logprobs": torch.zeros(3)}, "target_logprobs has shape"),
        ({"behaviour_logprobs": torch.zeros(2, 1)}, "behaviour_logprobs has shape"),
        ({"advantages": torch.zeros(2, 1)}, "advantages has shape"),
        ({"mask": torch.ones(2, 3)}, "mask has dtype"),
        ({"mask": torch.ones(3, 2, dtype=torch.bool)}, "mask has shape"),
        ({"behaviour_logprobs": torch.zeros(2, 3, dtype=torch.float64)}, "behaviour_logprobs has dtype"),
        ({"advantages": torch.zeros(2, dtype=torch.int64)}, "advantages has dtype"),
        ({"behaviour_logprobs": torch.zeros(2, 3, requires_grad=True)}, "must not require a gradient"),
        ({"normaliser": 0}, "normaliser"),
        ({"aggregation": "prompt"}, "aggregation"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    grpo_objective(**GOOD)
    with pytest.raises(ValueError, match=message):
        grpo_objective(**{**GOOD, **change})
