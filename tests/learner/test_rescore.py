"""A stored trajectory is rescored under its stored weights, and a lie about it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from offbeat.errors import InvariantError, WeightsError
from offbeat.learner.rescore import Rescorer, rescore
from offbeat.learner.step import PolicyLearner
from offbeat.ports import Sampling
from offbeat.records import Batch, Trajectory
from tests.learner.conftest import settings

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
