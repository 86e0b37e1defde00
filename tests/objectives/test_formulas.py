"""Every objective against its formula, on policy against REINFORCE, whole against its micro-batches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from offbeat.learner.objective import normaliser, objective_loss, survey
from offbeat.objectives import OBJECTIVES, Objective, Tokens
from tests.reference import clipped_ratio
from tests.reference import objectives as oracle
from tests.reference.objectives import Problem

LONGEST = 7
VARIANTS: list[Objective] = [
    *(kind() for kind in OBJECTIVES.values()),
    *(
        OBJECTIVES[name](**changes)
        for name, changes in [
            ("decoupled-ppo", {"cap": 1.5, "over_cap": "clamp"}),
            ("decoupled-ppo", {"cap": 1.5}),
            ("gspo", {"clip_low": 0.4, "clip_high": 0.5}),
            ("cispo", {"clip_low": 0.3, "clip_high": 1.0}),
            ("tis", {"level": "sequence", "cap": 1.3}),
            ("mis", {"level": "token", "lowest": 0.0, "highest": 3.0}),
            ("mis", {"level": "sequence", "lowest": 0.1, "highest": 8.0}),
            ("geo-rs", {"lowest": 0.5, "highest": 2.0}),
            ("m2po", {"threshold": 1.0}),
            ("m2po", {"threshold": 0.5, "tokens": "harmful"}),
            ("sapo", {"tau_positive": 0.5, "tau_negative": 3.0}),
            ("bapo", {"positive_share": 0.6}),
            ("bapo", {"positive_share": 1.0, "low_from": 0.0, "high_to": 1.21, "low_step": 0.4}),
        ]
    ),
]
FEW = settings(max_examples=20, deadline=None)
"""For tests that run once for each of two dozen variants."""
EACH = pytest.mark.parametrize("objective", VARIANTS, ids=lambda objective: repr(objective)[:60])


@st.composite
def problems(draw: st.DrawFn, spread: float = 4.0) -> Problem:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    logprob = st.floats(-spread, 0).map(lambda x: round(x, 4))
    target, proximal, behaviour = ([draw(st.lists(logprob, min_size=n, max_size=n)) for n in lengths] for _ in range(3))
    advantages = draw(
        st.lists(st.floats(-3, 3).map(lambda x: round(x, 3)), min_size=len(lengths), max_size=len(lengths))
    )
    return Problem(target, proximal, behaviour, advantages)


def padded(ragged: list[list[float]], fill: float) -> Tensor:
    width = max(map(len, ragged)) + 1
    return torch.tensor([row + [fill] * (width - len(row)) for row in ragged], dtype=torch.float64)


def tokens_of(problem: Problem) -> Tokens:
    """float64, with padding that would spoil everything it touched."""
    mask = padded([[1.0] * len(row) for row in problem.target], 0.0).bool()
    return Tokens(
        padded(problem.target, 7.0).requires_grad_(True),
        padded(problem.proximal, math.nan),
        padded(problem.behaviour, math.nan),
        torch.tensor(problem.advantages, dtype=torch.float64).unsqueeze(1),
        mask,
    )


def detached(tokens: Tokens) -> Tokens:
    return Tokens(
        tokens.target_logprobs.detach(),
        tokens.proximal_logprobs,
        tokens.behaviour_logprobs,
        tokens.advantages,
        tokens.mask,
    )


def loss_and_gradient(objective: Objective, problem: Problem, bounds: Any = None, divisor: float = 0.0) -> Any:
    """Loss, gradient [B, L] and statistics, with the objective's own aggregation."""
    tokens = tokens_of(problem)
    if bounds is None:
        bounds = survey(objective, [detached(tokens)]) if objective.SURVEYS else ()
    how = objective.AGGREGATION
    divisor = divisor or normaliser(how, int(tokens.mask.sum()), len(problem.target), LONGEST)
    loss, statistics = objective_loss(objective, tokens, how, divisor, bounds)
    loss.backward()
    assert tokens.target_logprobs.grad is not None
    assert (tokens.target_logprobs.grad[~tokens.mask] == 0).all()
    return loss.item(), tokens.target_logprobs.grad, statistics


def parameters(objective: Objective) -> dict[str, Any]:
    return {key: value for key, value in objective.model_dump().items() if key != "name"}


@EACH
@FEW
@given(problem=problems() | problems(spread=0.3))
def test_agrees_with_the_formula_and_its_derivative(objective: Objective, problem: Problem) -> None:
    loss, gradient, _ = loss_and_gradient(objective, problem)
    rows = oracle.FORMULAS[objective.name](problem, **parameters(objective))
    lengths, expected = [len(row) for row in rows], 0.0
    for i, row in enumerate(rows):
        divisor = oracle.divisor(objective.AGGREGATION, lengths, i, LONGEST)
        for j, (value, slope) in enumerate(row):
            expected -= value / divisor
            assert gradient[i, j].item() == pytest.approx(-slope / divisor, rel=1e-6, abs=1e-9), (i, j)
    assert loss == pytest.approx(expected, rel=1e-6, abs=1e-9)


@EACH
@FEW
@given(problem=problems())
def test_on_policy_gradient_is_that_of_reinforce(objective: Objective, problem: Problem) -> None:
    """At target = proximal = behaviour: -A / divisor at every token, the objective table's column."""
    on_policy = Problem(problem.target, problem.target, problem.target, problem.advantages)
    _, gradient, statistics = loss_and_gradient(objective, on_policy)
    lengths = [len(row) for row in problem.target]
    for i, advantage in enumerate(problem.advantages):
        divisor = oracle.divisor(objective.AGGREGATION, lengths, i, LONGEST)
        for j in range(lengths[i]):
            assert gradient[i, j].item() == pytest.approx(-advantage / divisor, rel=1e-9, abs=1e-12)
    assert (statistics.clipped.item(), statistics.ratio_max.item(), statistics.lag_kl_sum.item()) == (0, 1, 0)


@EACH
@FEW
@given(problem=problems())
def test_gradients_of_micro_batches_add_up_to_the_whole(objective: Objective, problem: Problem) -> None:
    whole_loss, whole, sums = loss_and_gradient(objective, problem)
    tokens = detached(tokens_of(problem))
    parts = [
        Problem(*([values[i]] for values in (problem.target, problem.proximal, problem.behaviour, problem.advantages)))
        for i in range(len(problem.target))
    ]
    bounds = survey(objective, [detached(tokens_of(part)) for part in parts]) if objective.SURVEYS else ()
    divisor = normaliser(objective.AGGREGATION, int(tokens.mask.sum()), len(problem.target), LONGEST)
    total, clipped = 0.0, 0.0
    for i, part in enumerate(parts):
        loss, gradient, statistics = loss_and_gradient(objective, part, bounds, divisor)
        total, clipped = total + loss, clipped + statistics.clipped.item()
        width = len(problem.target[i])
        torch.testing.assert_close(gradient[0, :width], whole[i, :width])
        assert statistics.trajectories[0].tolist() == pytest.approx(sums.trajectories[i].tolist())
    assert total == pytest.approx(whole_loss, rel=1e-9, abs=1e-12)
    assert clipped == sums.clipped.item() == sums.trajectories[:, 1].sum().item()


@given(problem=problems())
def test_the_clipped_ratio_has_the_bits_it_always_had(problem: Problem) -> None:
    for how in ("token", "sequence"):
        new, old = (tokens_of(problem) for _ in range(2))
        loss, _ = objective_loss(OBJECTIVES["grpo"](), new, how, 5.0)
        loss.backward()
        before = clipped_ratio.loss(
            old.target_logprobs, old.behaviour_logprobs, old.advantages.squeeze(1), old.mask, 0.2, 0.2, how, 5.0
        )
        before.backward()
        assert torch.equal(loss, before)
        assert torch.equal(new.target_logprobs.grad, old.target_logprobs.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tis", "mis", "geo-rs", "m2po", "topr", "decoupled-ppo", "icepop"])
@pytest.mark.parametrize("shift", [-90.0, 90.0])
def test_ratios_beyond_any_float_stay_finite_where_they_are_masked_or_truncated(name: str, shift: float) -> None:
    """A long trajectory's product of ratios is far beyond float32."""
    objective = OBJECTIVES[name](**({"level": "sequence"} if name == "tis" else {}))
    near, far = [-1.0] * 30, [-1.0 + shift] * 30
    behaviour = [near, far]
    problem = Problem([near, near], [near, near], behaviour, [1.0, -1.0])
    loss, gradient, _ = loss_and_gradient(objective, problem)
    assert math.isfinite(loss)
    assert bool(gradient.isfinite().all())


@given(problems())
@example(Problem([[-1.0, -1.0]], [[-1.0, -1.0]], [[-1.5, -1.5]], [1.0]))
def test_m2po_keeps_the_second_moment_below_its_threshold(problem: Problem) -> None:
    for threshold in (0.04, 0.5):
        objective = OBJECTIVES["m2po"](threshold=threshold)
        tokens = detached(tokens_of(problem))
        log_ratio = tokens.target_to_behaviour()[tokens.mask]
        (limit,) = survey(objective, [tokens])
        kept = log_ratio.square() < limit
        assert not kept.any() or float(log_ratio[kept].square().mean()) <= threshold * (1 + 1e-9)


def test_clip_higher_gives_unlikely_tokens_more_room_than_grpo() -> None:
    problem = Problem([[math.log(1.25)]], [[0.0]], [[0.0]], [1.0])
    slope = {name: loss_and_gradient(OBJECTIVES[name](), problem)[1][0, 0].item() for name in ("grpo", "dapo")}
    assert slope == {"grpo": 0.0, "dapo": pytest.approx(-1.25)}


def test_bapo_widens_high_first_and_stops_at_its_share() -> None:
    tokens = detached(tokens_of(Problem([[1.0], [0.0]], [[0.0], [0.0]], [[0.0], [0.0]], [1.0, -2.5])))
    assert survey(OBJECTIVES["bapo"](), [tokens]) == (0.6, pytest.approx(1.7))  # P / (P + N) = 1.7 / 4.2 >= 0.4
    bad = detached(tokens_of(Problem([[0.0]], [[0.0]], [[0.0]], [-1.0])))
    assert survey(OBJECTIVES["bapo"](), [bad]) == (pytest.approx(0.9), pytest.approx(3.0))
