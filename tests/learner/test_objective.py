"""What every loss has in common: its statistics against their formula, and arguments that are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offbeat.learner.objective import normaliser, objective_loss
from offbeat.objectives import Grpo, Tokens
from tests.objectives.test_formulas import Problem, problems, tokens_of
from tests.reference import grpo


@given(problems(), st.sampled_from(["token", "sequence"]))
def test_loss_and_statistics_agree_with_the_formula(problem: Problem, aggregation: Any) -> None:
    tokens = tokens_of(problem)
    divisor = normaliser(aggregation, int(tokens.mask.sum()), len(problem.target), 9)
    loss, statistics = objective_loss(Grpo(clip_low=0.2, clip_high=0.3), tokens, aggregation, divisor)
    of = problem.target, problem.behaviour, problem.advantages
    assert loss.item() == pytest.approx(grpo.loss(*of, 0.2, 0.3, aggregation), rel=1e-9, abs=1e-12)
    for name, value in grpo.statistics(*of, 0.2, 0.3).items():
        assert getattr(statistics, name).item() == pytest.approx(value, rel=1e-9, abs=1e-9), name
    for row, (target, behaviour, advantage) in zip(
        statistics.trajectories.tolist(), zip(*of, strict=True), strict=True
    ):
        sums = grpo.statistics([target], [behaviour], [advantage], 0.2, 0.3)
        log_ratio = sum(t - b for t, b in zip(target, behaviour, strict=True))
        expected = [sums["tokens"], sums["clipped"], sums["lag_kl_sum"], log_ratio]
        assert row == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_clip_removes_the_gradient_on_the_far_side_only() -> None:
    near, far = [0.0], [-2.0]
    tokens = tokens_of(Problem([near, near, far, far], [near] * 4, [[-1.0]] * 4, [1.0, -1.0, 1.0, -1.0]))
    loss, statistics = objective_loss(Grpo(), tokens, "token", 4)
    loss.backward()
    assert tokens.target_logprobs.grad is not None
    assert (tokens.target_logprobs.grad[:, 0] != 0).tolist() == [False, True, True, False]
    assert statistics.clipped.item() == 2


def test_divisors() -> None:
    assert [normaliser(how, 30, 4, 10) for how in ("token", "sequence", "constant")] == [30, 4, 40]  # type: ignore[arg-type]


GOOD = {
    "target_logprobs": torch.zeros(2, 3), "proximal_logprobs": torch.zeros(2, 3),
    "behaviour_logprobs": torch.zeros(2, 3), "advantages": torch.zeros(2, 1),
    "mask": torch.ones(2, 3, dtype=torch.bool),
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_logprobs": torch.zeros(3)}, "target_logprobs has shape"),
        ({"proximal_logprobs": torch.zeros(2, 1)}, "proximal_logprobs has shape"),
        ({"behaviour_logprobs": torch.zeros(2, 1)}, "behaviour_logprobs has shape"),
        ({"advantages": torch.zeros(2)}, "advantages has shape"),
        ({"mask": torch.ones(2, 3)}, "mask has dtype"),
        ({"mask": torch.ones(3, 2, dtype=torch.bool)}, "mask has shape"),
        ({"behaviour_logprobs": torch.zeros(2, 3, dtype=torch.float64)}, "behaviour_logprobs has dtype"),
        ({"advantages": torch.zeros(2, 1, dtype=torch.int64)}, "advantages has dtype"),
        ({"behaviour_logprobs": torch.zeros(2, 3, requires_grad=True)}, "must not require a gradient"),
        ({"proximal_logprobs": torch.zeros(2, 3, requires_grad=True)}, "must not require a gradient"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    objective_loss(Grpo(), Tokens(**GOOD), "token", 6)
    with pytest.raises(ValueError, match=message):
        objective_loss(Grpo(), Tokens(**{**GOOD, **change}), "token", 6)


def test_wrong_divisors_and_sums_are_named() -> None:
    with pytest.raises(ValueError, match="normaliser"):
        objective_loss(Grpo(), Tokens(**GOOD), "token", 0)
    with pytest.raises(ValueError, match="aggregation"):
        objective_loss(Grpo(), Tokens(**GOOD), "prompt", 6)  # type: ignore[arg-type]
