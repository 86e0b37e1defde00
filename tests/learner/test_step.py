"""One RL iteration: what moves, what does not, and what the report says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from offbeat.errors import InvariantError
from offbeat.learner.layout import Layout
from offbeat.learner.policy import Policy
from offbeat.learner.step import PolicyLearner, adamw
from offbeat.ports import Sampling
from offbeat.records import Batch, StepReport
from offbeat.settings import LearnerSettings
from tests.learner.conftest import settings
from tests.reference import grpo
from tests.reference.advantage import advantages

MakeBatch = Callable[..., Batch]


def state_of(learner: PolicyLearner) -> dict[str, Tensor]:
    """Parameters and optimizer tensors, copied."""
    found = {name: tensor.detach().clone() for name, tensor in learner.policy.weights().items()}
    for index, entry in learner.optimizer.state_dict()["state"].items():
        found.update({f"{index}/{key}": value.clone() for key, value in entry.items()})
    return found


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def differs(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() != b.keys() or any(not torch.equal(a[name], b[name]) for name in a)


def with_rewards(batch: Batch, *rewards: tuple[float, ...]) -> Batch:
    groups = (msgspec.structs.replace(g, rewards=r) for g, r in zip(batch.groups, rewards, strict=True))
    return Batch(batch.iteration, tuple(groups))


def test_a_step_raises_the_version_and_fills_the_report(model_dir: Path, sample_batch: MakeBatch) -> None:
    learner = PolicyLearner.open(model_dir, settings(warmup_iterations=4))
    batch = sample_batch()
    before = state_of(learner)
    report = learner.step(batch)
    assert learner.version == 1
    assert differs(before, state_of(learner))
    trajectories = [t for g in batch.groups for t in g.trajectories]
    tokens = sum(len(t.token_ids) for t in trajectories)
    assert (report.iteration, report.trajectories, report.tokens) == (0, 12, tokens)
    assert report.prompt_tokens == sum(4 * len(g.prompt.token_ids) for g in batch.groups)
    assert (report.reward_mean, report.reward_std) == (0.5, 0.5)
    assert report.ratio_mean == pytest.approx(1, abs=1e-5)
    assert report.ratio_max == pytest.approx(1, abs=1e-4)
    assert report.policy_lag_kl == pytest.approx(0, abs=1e-8)
    assert report.learning_rate == pytest.approx(1e-2 / 4)
    assert (report.clip_share, report.skipped_updates, report.consecutive_skips) == (0, 0, 0)
    assert 0 < report.entropy < math.log(24)
    assert report.gradient_norm > 0
    assert report.train_seconds > 0
    assert report.publish_seconds == 0
    assert msgspec.json.decode(msgspec.json.encode(report), type=StepReport) == report


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_loss_and_statistics_off_policy_agree_with_the_formula(
    model_dir: Path, sample_batch: MakeBatch, reference_logits: Any, aggregation: str
) -> None:
    batch = sample_batch(sampling=Sampling(temperature=2.0), seed=4)
    learner = PolicyLearner.open(model_dir, settings(rollout={"temperature": 1.25}, aggregation=aggregation))
    report = learner.step(batch)
    target, behaviour, weights = [], [], []
    for group in batch.groups:
        weights += advantages(list(group.rewards), True, 1e-6)
        for trajectory in group.trajectories:
            logits = reference_logits(model_dir, group.prompt.token_ids + trajectory.token_ids)
            start = len(group.prompt.token_ids) - 1
            target.append(
                [grpo.logprob(logits[start + i], token, 1.25, None) for i, token in enumerate(trajectory.token_ids)]
            )
            behaviour.append(list(trajectory.behaviour_logprobs))
    assert report.loss == pytest.approx(grpo.loss(target, behaviour, weights, 0.2, 0.2, aggregation), abs=1e-4)
    sums = grpo.statistics(target, behaviour, weights, 0.2, 0.2)
    assert report.clip_share == pytest.approx(sums["clipped"] / report.tokens)
    assert report.clip_share > 0
    assert report.ratio_mean == pytest.approx(sums["ratio_sum"] / report.tokens, abs=1e-4)
    assert report.ratio_max == pytest.approx(sums["ratio_max"], rel=1e-3)
    assert report.policy_lag_kl == pytest.approx(sums["lag_kl_sum"] / report.tokens, abs=1e-4)


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_micro_batches_of_any_size_give_the_same_update(
    model_dir: Path, sample_batch: MakeBatch, aggregation: str
) -> None:
    batch, gradients = sample_batch(groups=4), []
    ways: list[tuple[int, Layout]] = [
        (8192, "tree"), (8192, "shared"), (8192, "plain"), (1, "plain"), (1, "tree"), (40, "shared"), (40, "tree")
    ]  # fmt: skip
    for tokens, layout in ways:
        learner = PolicyLearner.open(
            model_dir, settings(micro_batch_tokens=tokens, aggregation=aggregation), capture_gradient(gradients)
        )
        learner.policy.layout = layout
        learner.step(batch)
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], atol=1e-6, rtol=1e-4)


def test_recomputed_activations_give_the_same_update_and_keep_less(model_dir: Path, sample_batch: MakeBatch) -> None:
    batch, gradients, kept = sample_batch(groups=4), [], []
    for recompute in (False, True):
        learner = PolicyLearner.open(model_dir, settings(recompute_activations=recompute), capture_gradient(gradients))
        learner.policy.layout = "shared"  # as recomputing wants it: compiled passes keep what they keep
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.nbytes) or t, lambda t: t):  # noqa: B023
            learner.step(batch)
        kept.append(sum(sizes))
    assert torch.equal(gradients[0], gradients[1])
    assert kept[1] < kept[0]


def capture_gradient(into: list[Tensor]) -> Callable[[Iterable[nn.Parameter], LearnerSettings], torch.optim.Optimizer]:
    """An optimizer factory: AdamW that notes the gradient each time it is asked to step."""

    def factory(parameters: Iterable[nn.Parameter], chosen: LearnerSettings) -> torch.optim.Optimizer:
        optimizer = adamw(parameters, chosen)
        optimizer.register_step_pre_hook(
            lambda *_: into.append(
                torch.cat([p.grad.flatten() for g in optimizer.param_groups for p in g["params"] if p.grad is not None])
            )
        )
        return optimizer

    return factory


def test_the_gradient_is_clipped_to_its_bound(model_dir: Path, sample_batch: MakeBatch) -> None:
    seen: list[Tensor] = []
    learner = PolicyLearner.open(model_dir, settings(max_gradient_norm=1e-2), capture_gradient(seen))
    report = learner.step(sample_batch())
    assert report.gradient_norm > 1e-2
    assert seen[0].norm().item() == pytest.approx(1e-2, rel=1e-3)


def test_updates_per_iteration_are_that_many_optimizer_steps(model_dir: Path, sample_batch: MakeBatch) -> None:
    seen: list[Tensor] = []
    learner = PolicyLearner.open(model_dir, settings(updates_per_iteration=3), capture_gradient(seen))
    report = learner.step(sample_batch())
    assert (len(seen), learner.version) == (3, 1)
    assert report.ratio_max > 1.001  # the later updates are off policy


def test_warm_up_is_linear_and_so_is_the_decay(model_dir: Path, sample_batch: MakeBatch) -> None:
    decaying = settings(learning_rate=1e-4, warmup_iterations=2, iterations=5, final_learning_rate_share=0.2)
    learner = PolicyLearner.open(model_dir, decaying)
    rates = [learner.step(sample_batch(iteration)).learning_rate for iteration in range(5)]
    assert rates == pytest.approx([0.5e-4, 0.8e-4, 0.6e-4, 0.4e-4, 0.2e-4])
    constant = settings(learning_rate=1e-4, warmup_iterations=2, final_learning_rate_share=1.0)
    learner = PolicyLearner.open(model_dir, constant)
    rates = [learner.step(sample_batch(iteration)).learning_rate for iteration in range(3)]
    assert rates == pytest.approx([0.5e-4, 1e-4, 1e-4])
    assert learner.optimizer.param_groups[0]["lr"] == 1e-4


def test_training_makes_the_rewarded_more_likely(model_dir: Path, sample_batch: MakeBatch) -> None:
    learner = PolicyLearner.open(model_dir, settings(learning_rate=3e-3))
    batch = sample_batch()

    def gap() -> float:
        total = 0.0
        for group in batch.groups:
            for trajectory, reward in zip(group.trajectories, group.rewards, strict=True):
                score = learner.score(group.prompt.token_ids, trajectory.token_ids)
                total += (reward - 0.5) * sum(score) / len(score)
        return total

    before = gap()
    for iteration in range(4):
        learner.step(msgspec.structs.replace(batch, iteration=iteration))
    assert gap() > before + 0.1


def test_a_batch_without_advantage_changes_nothing_but_the_version(model_dir: Path, sample_batch: MakeBatch) -> None:
    learner = PolicyLearner.open(model_dir, settings(weight_decay=0.1))
    learner.step(sample_batch(0))
    before = state_of(learner)
    report = learner.step(with_rewards(sample_batch(1), (1.0,) * 4, (0.0,) * 4, (0.3,) * 4))
    assert_same(before, state_of(learner))
    assert learner.version == 2
    assert (report.zero_advantage_groups, report.loss, report.gradient_norm) == (3, 0, 0)
    assert (report.skipped_updates, report.consecutive_skips) == (0, 0)
    assert report.entropy > 0
    assert report.ratio_mean > 0


def test_a_batch_without_advantage_neither_steps_the_optimizer_nor_ends_a_run_of_skips(
    model_dir: Path, sample_batch: MakeBatch
) -> None:
    seen: list[Tensor] = []
    learner = PolicyLearner.open(model_dir, settings(), capture_gradient(seen))
    poison(learner, math.nan, times=1)
    learner.step(sample_batch(0))
    report = learner.step(with_rewards(sample_batch(1), (1.0,) * 4, (0.0,) * 4, (0.3,) * 4))
    assert (report.skipped_updates, report.consecutive_skips, len(seen)) == (0, 1, 0)


def test_groups_without_advantage_are_measured_and_counted_in_the_mean(
    model_dir: Path, sample_batch: MakeBatch
) -> None:
    batch = sample_batch(groups=2)
    mixed = with_rewards(batch, (1.0, 0.0, 1.0, 0.0), (1.0,) * 4)
    report = PolicyLearner.open(model_dir, settings()).step(mixed)
    alone = PolicyLearner.open(model_dir, settings()).step(Batch(0, mixed.groups[:1]))
    assert report.zero_advantage_groups == 1
    assert report.gradient_norm == pytest.approx(alone.gradient_norm * alone.tokens / report.tokens, rel=1e-4)
    assert report.ratio_mean == pytest.approx(1, abs=1e-4)


def poison(learner: PolicyLearner, value: float, times: int) -> None:
    """Add `value` to the gradient of one parameter, in the next `times` backward passes."""
    left = [times]

    def hook(gradient: Tensor) -> Tensor:
        left[0] -= 1
        return gradient + value if left[0] >= 0 else gradient

    next(iter(learner.policy.model.parameters())).register_hook(hook)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_skipped_bit_for_bit(
    model_dir: Path, sample_batch: MakeBatch, value: float
) -> None:
    learner = PolicyLearner.open(model_dir, settings(weight_decay=0.1))
    learner.step(sample_batch(0))
    before = state_of(learner)
    poison(learner, value, times=2)
    reports = [learner.step(sample_batch(iteration)) for iteration in (1, 2)]
    assert_same(before, state_of(learner))
    assert [r.skipped_updates for r in reports] == [1, 1]
    assert [r.consecutive_skips for r in reports] == [1, 2]
    assert all(math.isfinite(x) for r in reports for x in msgspec.structs.astuple(r) if isinstance(x, int | float))
    after = learner.step(sample_batch(3))
    assert (after.skipped_updates, after.consecutive_skips, learner.version) == (0, 0, 4)
    assert differs(before, state_of(learner))


def test_a_loss_that_is_not_finite_is_skipped(model_dir: Path, sample_batch: MakeBatch) -> None:
    learner = PolicyLearner.open(model_dir, settings())
    with torch.no_grad():
        next(iter(learner.policy.model.parameters())).fill_(math.nan)
    report = learner.step(sample_batch())
    assert (report.skipped_updates, report.loss, report.ratio_max) == (1, 0, 0)
    assert learner.optimizer.state_dict()["state"] == {}


def test_one_skipped_update_of_several_leaves_the_others_in_the_report(
    model_dir: Path, sample_batch: MakeBatch
) -> None:
    learner = PolicyLearner.open(model_dir, settings(updates_per_iteration=3))
    poison(learner, math.nan, times=1)
    report = learner.step(sample_batch())
    assert (report.skipped_updates, report.consecutive_skips) == (1, 0)
    assert report.gradient_norm > 0


def test_another_versions_batch_and_malformed_ones_change_nothing(model_dir: Path, sample_batch: MakeBatch) -> None:
    learner = PolicyLearner.open(model_dir, settings(updates_per_iteration=2))
    before = state_of(learner)
    with pytest.raises(InvariantError, match="iteration 1 came to a learner of version 0"):
        learner.step(sample_batch(1))
    batch = sample_batch()
    last = batch.groups[-1]
    broken = msgspec.structs.replace(
        last.trajectories[-1],
        spans=(msgspec.structs.replace(last.trajectories[-1].spans[0], behaviour_logprobs=()),),
    )
    groups = (*batch.groups[:-1], msgspec.structs.replace(last, trajectories=(*last.trajectories[:-1], broken)))
    with pytest.raises(InvariantError, match="behaviour log-probs"):
        learner.step(Batch(0, groups))
    assert learner.version == 0
    assert_same(before, state_of(learner))


def test_score_is_the_plain_log_prob(model_dir: Path, reference_logits: Any) -> None:
    learner = PolicyLearner(model_dir, Policy.load(model_dir), settings(rollout={"temperature": 3.0}))
    logits = reference_logits(model_dir, (3, 4, 5, 6))
    expected = [grpo.logprob(logits[1], 5, 1.0, None), grpo.logprob(logits[2], 6, 1.0, None)]
    assert learner.score((3, 4), (5, 6)) == pytest.approx(expected, abs=2e-5)
