"""Every objective through the real step: finite, reported, and with the right policies where they differ."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from offbeat.learner.step import PolicyLearner
from offbeat.objectives import NAMES
from offbeat.records import Batch, StepReport
from tests.learner.conftest import settings
from tests.learner.test_step import MakeBatch, capture_gradient, differs, state_of, with_rewards


def aged(batch: Batch, iteration: int) -> Batch:
    return msgspec.structs.replace(batch, iteration=iteration)


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_every_objective_trains_off_policy(model_dir: Path, sample_batch: MakeBatch, name: str, updates: int) -> None:
    learner = PolicyLearner.open(model_dir, settings(objective=name, updates_per_iteration=updates, learning_rate=1e-3))
    before = state_of(learner)
    for iteration in range(3):
        report = learner.step(aged(sample_batch(seed=iteration), iteration))
        assert report.skipped_updates == 0
        assert math.isfinite(report.loss)
        assert 0 <= report.gradient_norm < math.inf
        assert msgspec.json.decode(msgspec.json.encode(report), type=StepReport) == report
    assert differs(before, state_of(learner))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("gspo", "dr-grpo")])
def test_on_policy_every_objective_gives_the_update_of_grpo(
    model_dir: Path, sample_batch: MakeBatch, name: str
) -> None:
    gradients: list[torch.Tensor] = []
    for each in ("grpo", name):
        PolicyLearner.open(model_dir, settings(objective=each), capture_gradient(gradients)).step(sample_batch())
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=1e-3)


def test_the_proximal_policy_is_the_target_at_the_start_of_the_iteration(
    model_dir: Path, sample_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recomputed once, before the first of several updates; the second update leaves it where it was."""
    learner = PolicyLearner.open(model_dir, settings(objective="decoupled-ppo", updates_per_iteration=2))
    learner.step(sample_batch())
    batch = aged(sample_batch(seed=1), 1)
    start = PolicyLearner.open(model_dir, settings())
    start.policy.model.load_state_dict(learner.policy.model.state_dict())
    expected = {
        (g.prompt.token_ids, t.token_ids): start.score(g.prompt.token_ids, t.token_ids)
        for g in batch.groups
        for t in g.trajectories
    }
    seen = 0
    tokens_of = PolicyLearner._tokens

    def spy(self: PolicyLearner, micro_batch: Any, logprobs: torch.Tensor) -> Any:
        nonlocal seen
        tokens = tokens_of(self, micro_batch, logprobs)
        for sample, row in zip(micro_batch.samples, tokens.proximal_logprobs.tolist(), strict=True):
            assert row[: len(sample.response_ids)] == pytest.approx(
                expected[sample.prompt_ids, sample.response_ids], abs=1e-5
            )
            seen += 1
        return tokens

    monkeypatch.setattr(PolicyLearner, "_tokens", spy)
    learner.step(batch)
    assert seen == sum(len(group.trajectories) for group in batch.groups)


def test_with_one_update_the_proximal_policy_is_the_target_and_costs_no_pass(
    model_dir: Path, sample_batch: MakeBatch
) -> None:
    learner = PolicyLearner.open(model_dir, settings(objective="decoupled-ppo", mismatch_trajectories=0))
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    learner.policy.model.register_forward_pre_hook(count)
    learner.step(sample_batch())
    grpo = PolicyLearner.open(model_dir, settings())
    grpo.policy.model.register_forward_pre_hook(lambda *_: None)
    assert passes == 1


@pytest.mark.parametrize(("change", "scale"), [({"ess_reference": 1.0}, None), ({"staleness_rate": "inverse"}, 0.25)])
def test_rates_scale_the_update_and_are_restored(
    model_dir: Path, sample_batch: MakeBatch, change: dict[str, Any], scale: float | None
) -> None:
    batch = aged(sample_batch(seed=3), 4)
    plain, scaled = (
        PolicyLearner.open(model_dir, settings(learning_rate=1e-3, iterations=10**6, **c)) for c in ({}, change)
    )
    with torch.no_grad():
        for learner in (plain, scaled):
            learner.version = 4
            for parameter in learner.policy.model.parameters():
                parameter.mul_(1.05)
    a, b = plain.step(batch).instruments, scaled.step(batch).instruments
    assert a is not None
    assert b is not None
    assert b.effective_sample_size is not None
    expected = scale if scale is not None else math.sqrt(b.effective_sample_size)
    assert (a.rate_scale, b.rate_scale) == (1.0, pytest.approx(expected))
    assert expected < 0.99
    assert b.iteration_drift == pytest.approx(a.iteration_drift * expected, rel=1e-3)
    assert b.g_upd == pytest.approx(a.g_upd, rel=1e-3)
    assert scaled.optimizer.param_groups[0]["lr"] == plain.optimizer.param_groups[0]["lr"]


def test_without_a_baseline_equal_rewards_teach(model_dir: Path, sample_batch: MakeBatch) -> None:
    batch = with_rewards(sample_batch(), (1.0,) * 4, (0.0,) * 4, (1.0,) * 4)
    report = PolicyLearner.open(model_dir, settings(baseline="none")).step(batch)
    assert report.zero_advantage_groups == 1
    assert report.gradient_norm > 0
    assert PolicyLearner.open(model_dir, settings(baseline="opo")).step(batch).gradient_norm == 0
