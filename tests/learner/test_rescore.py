"""A stored trajectory is rescored under its stored weights, and a lie about it shows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from offbeat.errors import InvariantError, WeightsError
from offbeat.learner.rescore import Rescorer, rescore
from offbeat.learner.step import PolicyLearner
from offbeat.ports import Sampling
from offbeat.records import Batch, Span, Trajectory
from tests.learner.conftest import settings
from tests.reference import grpo

MakeBatch = Callable[..., Batch]


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.7), Sampling(temperature=1.3, top_k=5, top_p=0.8)], ids=str
)
def test_the_stated_log_probs_are_found_again(model_dir: Path, sample_batch: MakeBatch, sampling: Sampling) -> None:
    rescorer = Rescorer(model_dir, model_dir / "model.safetensors")
    for group in sample_batch(sampling=sampling, groups=2).groups:
        for trajectory in group.trajectories:
            found = rescorer.behaviour_logprobs(group.prompt.token_ids, trajectory, sampling)
            assert found == pytest.approx(trajectory.behaviour_logprobs, abs=2e-5)


def test_greedy_is_stated_at_temperature_1(model_dir: Path, sample_batch: MakeBatch) -> None:
    group = sample_batch(groups=1).groups[0]
    greedy = Sampling(temperature=0, top_k=3)
    found = rescore(model_dir, model_dir / "model.safetensors", group.prompt.token_ids, group.trajectories[0], greedy)
    assert found == pytest.approx(group.trajectories[0].behaviour_logprobs, abs=2e-5)


def test_other_weights_or_another_sampling_show(model_dir: Path, tmp_path: Path, sample_batch: MakeBatch) -> None:
    batch = sample_batch()
    learner = PolicyLearner.open(model_dir, settings())
    learner.step(batch)
    digest = learner.save(tmp_path)
    other = Rescorer(model_dir, tmp_path / "model.safetensors")
    assert other.digest == digest
    prompt, trajectory = batch.groups[0].prompt.token_ids, batch.groups[0].trajectories[0]
    stated = trajectory.behaviour_logprobs
    found = other.behaviour_logprobs(prompt, trajectory, Sampling())
    assert max(abs(a - b) for a, b in zip(found, stated, strict=True)) > 1e-3
    same = Rescorer(model_dir, model_dir / "model.safetensors")
    found = same.behaviour_logprobs(prompt, trajectory, Sampling(temperature=0.5))
    assert max(abs(a - b) for a, b in zip(found, stated, strict=True)) > 1e-3


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.7), Sampling(top_k=5)], ids=str)
def test_every_span_under_its_own_weights_with_all_before_it_as_context(
    model_dir: Path, tmp_path: Path, sample_batch: MakeBatch, reference_logits: Any, sampling: Sampling
) -> None:
    """The oracle is plain `transformers`, one position after the other, with the weights of the span's version."""
    learner = PolicyLearner.open(model_dir, settings())
    learner.step(sample_batch())
    learner.save(tmp_path)
    shutil.copy(model_dir / "config.json", tmp_path)
    weights = {3: model_dir, 4: tmp_path}
    prompt, tokens = (5, 9, 7), (4, 11, 3, 8, 8, 15, 6)
    spans = []
    for version, start, end in ((3, 0, 2), (4, 2, 6), (4, 6, 7)):
        logprobs, supports = [], []
        for position in range(start, end):
            last = reference_logits(weights[version], prompt + tokens[:position])[-1]
            kept = grpo.kept_ids(last, sampling.temperature, sampling.top_k, sampling.top_p)
            kept = tuple(sorted({*kept, tokens[position]})) if sampling.top_k else tuple(range(len(last)))
            logprobs.append(grpo.logprob(last, tokens[position], sampling.temperature, kept))
            supports.append(kept)
        spans.append(Span(version, tokens[start:end], tuple(logprobs), tuple(supports) if sampling.top_k else None))
    trajectory = Trajectory(1, 0, tuple(spans), "stop")
    stated = {3: spans[0].behaviour_logprobs, 4: spans[1].behaviour_logprobs + spans[2].behaviour_logprobs}
    rescorers = {version: Rescorer(where, where / "model.safetensors") for version, where in weights.items()}
    for version, rescorer in rescorers.items():
        found = rescorer.logprobs_of_version(prompt, trajectory, sampling, version)
        assert found == pytest.approx(stated[version], abs=2e-5)
        assert rescorer.logprobs_of_version(prompt, trajectory, sampling, 9) == []
    wrong = rescorers[3].logprobs_of_version(prompt, trajectory, sampling, 4)
    assert max(abs(a - b) for a, b in zip(wrong, stated[4], strict=True)) > 1e-3


def test_unusable_trajectories_and_weights_are_refused(
    model_dir: Path, tmp_path: Path, sample_batch: MakeBatch
) -> None:
    rescorer = Rescorer(model_dir, model_dir / "model.safetensors")
    trajectory = sample_batch().groups[0].trajectories[0]
    later = msgspec.structs.replace(trajectory.spans[0], version=1)
    with pytest.raises(InvariantError, match="several versions"):
        rescorer.behaviour_logprobs((3,), Trajectory(1, 0, (trajectory.spans[0], later), "stop"), Sampling())
    with pytest.raises(InvariantError, match="no behaviour support"):
        rescorer.behaviour_logprobs((3,), trajectory, Sampling(top_p=0.5))
    with pytest.raises(WeightsError, match="no such file"):
        Rescorer(model_dir, tmp_path / "model.safetensors")
