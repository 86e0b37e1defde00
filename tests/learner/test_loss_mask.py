"""Given tokens are context: what stands at them is never trained on, never measured, never counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from offbeat.learner.batches import samples_of
from offbeat.learner.layout import micro_batches
from offbeat.learner.logprobs import target_logprobs
from offbeat.learner.policy import Policy
from offbeat.learner.rescore import Rescorer
from offbeat.learner.step import PolicyLearner
from offbeat.ports import Sampling
from offbeat.records import Batch, Group, Span, Trajectory
from tests.learner.conftest import VOCABULARY, settings

SAMPLINGS = [Sampling(), Sampling(temperature=1.7, top_k=7, top_p=0.8)]


def with_given(batch: Batch, logprob: float = 0.0, seed: int = 0) -> Batch:
    """The batch with some tokens of its trajectories, never the first, said to be given."""
    rng = random.Random(seed)

    def masked(trajectory: Trajectory) -> Trajectory:
        (span,) = trajectory.spans
        mask = tuple(i == 0 or rng.random() < 0.5 for i in range(len(span.token_ids)))
        logprobs = tuple(
            own if kept else logprob for own, kept in zip(span.behaviour_logprobs, mask, strict=True)
        )  # fmt: skip
        support = span.behaviour_support and tuple(
            own if kept else (token,)
            for own, kept, token in zip(span.behaviour_support, mask, span.token_ids, strict=True)
        )
        return msgspec.structs.replace(trajectory, spans=(Span(0, span.token_ids, logprobs, support, mask),))

    def regrouped(group: Group) -> Group:
        return msgspec.structs.replace(group, trajectories=tuple(map(masked, group.trajectories)))

    return msgspec.structs.replace(batch, groups=tuple(map(regrouped, batch.groups)))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("share", [False, True], ids=["plain", "shared"])
def test_sampled_tokens_keep_their_logprobs_and_given_ones_have_none(
    model_dir: Path, sample_batch: Callable[..., Batch], sampling: Sampling, share: bool
) -> None:
    policy, batch = Policy.load(model_dir), with_given(sample_batch(sampling=sampling))
    samples = [s for group in batch.groups for s in samples_of(group, sampling, True, VOCABULARY)]
    assert any(s.sampled < len(s.response_ids) for s in samples)
    for part in micro_batches(samples, 150, share):
        target, _ = target_logprobs(policy, part, sampling.temperature)
        torch.testing.assert_close(target.detach(), part.behaviour_logprobs, atol=2e-5, rtol=0)
        assert int(part.response_mask.sum()) == len(part.response_ids) == sum(s.sampled for s in part.samples)
        for row, sample in zip(part.response_mask.tolist(), part.samples, strict=True):
            assert tuple(row[: len(sample.response_ids)]) == (sample.loss_mask or (True,) * len(sample.response_ids))


@pytest.mark.parametrize("objective", ["grpo", "decoupled-ppo", "gspo"])
def test_what_stands_at_given_tokens_changes_no_step(
    model_dir: Path, sample_batch: Callable[..., Batch], objective: str
) -> None:
    reports, weights = [], []
    for logprob in (0.0, -7.0):
        learner = PolicyLearner.open(model_dir, settings(objective=objective))
        reports.append(learner.step(with_given(sample_batch(), logprob)))
        weights.append([parameter.detach().clone() for parameter in learner.policy.model.parameters()])
    assert reports[0].loss == reports[1].loss
    assert reports[0].ratio_mean == reports[1].ratio_mean == pytest.approx(1.0, abs=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_a_trajectory_that_was_all_sampled_is_trained_on_as_without_a_mask(
    model_dir: Path, sample_batch: Callable[..., Batch]
) -> None:
    plain = sample_batch()

    def all_true(trajectory: Trajectory) -> Trajectory:
        (span,) = trajectory.spans
        mask = (True,) * len(span.token_ids)
        return msgspec.structs.replace(trajectory, spans=(msgspec.structs.replace(span, loss_mask=mask),))

    groups = tuple(
        msgspec.structs.replace(group, trajectories=tuple(map(all_true, group.trajectories))) for group in plain.groups
    )
    losses = [PolicyLearner.open(model_dir, settings()).step(batch).loss for batch in (plain, Batch(0, groups))]
    assert losses[0] == losses[1]


def test_rescoring_leaves_given_tokens_out(model_dir: Path, sample_batch: Callable[..., Batch]) -> None:
    rescorer = Rescorer(model_dir, model_dir / "model.safetensors")
    for group in with_given(sample_batch()).groups:
        for trajectory in group.trajectories:
            again = rescorer.behaviour_logprobs(group.prompt.token_ids, trajectory, Sampling())
            assert again == pytest.approx(trajectory.behaviour_logprobs, abs=2e-5)
