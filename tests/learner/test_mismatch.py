"""Engine error and policy lag are told apart, and measuring changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from offbeat.learner.batches import Sample
from offbeat.learner.mismatch import gap, measure, spread
from offbeat.learner.policy import Policy
from offbeat.learner.step import PolicyLearner
from offbeat.records import Batch
from tests.learner.conftest import settings

MakeBatch = Callable[..., Batch]
SAMPLE = Sample(0, (3, 4, 5), (6, 7, 8, 9), (0.0,) * 4, None, 0.0)


def scores(policy: Policy, sample: Sample) -> np.ndarray:
    with torch.no_grad():
        logits = policy.model(torch.tensor([[*sample.prompt_ids, *sample.response_ids]])).logits[0].log_softmax(-1)
    start = len(sample.prompt_ids) - 1
    return np.array([float(logits[start + i, token]) for i, token in enumerate(sample.response_ids)])


@pytest.mark.parametrize("staleness", [0, 1])
def test_what_the_engine_erred_and_what_the_policy_moved(model_dir: Path, staleness: int) -> None:
    policy = Policy.load(model_dir)
    parameters = list(policy.model.parameters())
    then = [parameter.detach().clone() for parameter in parameters]
    sampled = scores(policy, SAMPLE)
    if staleness:
        with torch.no_grad():
            for parameter in parameters:
                parameter += 0.02
    now, before = scores(policy, SAMPLE), [parameter.detach().clone() for parameter in parameters]
    erring = sampled + np.array([0.0, 0.3, -0.02, 0.0])
    sample = replace(SAMPLE, behaviour_logprobs=tuple(map(float, erring)), staleness=staleness)
    unknown = replace(sample, staleness=5)
    found = measure(policy, parameters, {1 - staleness: then}.get, [sample, unknown], 1.0, version=1)
    assert found is not None
    assert found.tokens == 4
    assert found.engine_error.mean == pytest.approx(0.08, abs=1e-4)
    assert found.engine_error.beyond == 0.25
    assert found.policy_lag.mean == pytest.approx(abs(now - sampled).mean(), abs=1e-4)
    assert (found.policy_lag.mean > 0.01) == bool(staleness)
    assert all(torch.equal(a, b) for a, b in zip(parameters, before, strict=True))


def test_trajectories_of_several_versions_with_words_of_others_in_them(model_dir: Path) -> None:
    """Each under the version that sampled it, and of one with masked tokens only what the policy said."""
    policy = Policy.load(model_dir)
    parameters = list(policy.model.parameters())
    kept: dict[int, list[torch.Tensor]] = {}
    ages = {0: (6, 7, 8, 9), 1: (9, 3), 2: (5, 8, 4)}
    samples, own = [], []
    for age in (2, 1, 0):
        kept[2 - age] = [parameter.detach().clone() for parameter in parameters]
        sample = replace(SAMPLE, group_id=age, response_ids=ages[age], staleness=age)
        logprobs = scores(policy, sample)
        mask = (True, False, True) if age == 2 else None
        sample = replace(sample, behaviour_logprobs=tuple(map(float, logprobs + 0.05)), loss_mask=mask)
        samples.insert(age % 2, sample)
        own.append((sample, logprobs))
        with torch.no_grad():
            for parameter in parameters:
                parameter += 0.02 * bool(age)
    lags = [np.array(sample.of_sampled(tuple(abs(scores(policy, sample) - then)))) for sample, then in own]
    found = measure(policy, parameters, kept.get, samples, 1.0, version=2)
    assert found is not None
    assert found.tokens == 2 + 2 + 4
    assert found.engine_error.mean == pytest.approx(0.05, abs=1e-4)
    assert found.policy_lag.mean == pytest.approx(np.concatenate(lags).mean(), abs=1e-4)
    assert found.policy_lag.mean > 0.01


def test_quantile_and_share() -> None:
    one = [0.0] * 100
    other = [0.001 * i for i in range(100)]
    other[7] = -0.5
    found = gap(one, other)
    assert found.beyond == pytest.approx(0.01)
    assert found.p99 == pytest.approx(np.quantile(np.abs(other), 0.99))
    assert found.mean == pytest.approx(np.abs(other).mean())


def test_samples_are_spread_over_the_batch() -> None:
    samples = [replace(SAMPLE, group_id=i) for i in range(10)]
    assert [sample.group_id for sample in spread(samples, 4)] == [0, 2, 5, 7]
    assert spread(samples, 99) == samples


def test_it_is_in_the_report_and_training_is_the_same_with_it_and_without(
    model_dir: Path, sample_batch: MakeBatch
) -> None:
    made = [PolicyLearner.open(model_dir, settings(mismatch_trajectories=count)) for count in (0, 5)]
    reports = [[learner.step(sample_batch(iteration=i, seed=i)) for i in range(2)] for learner in made]
    assert [report.mismatch for report in reports[0]] == [None, None]
    first, second = (report.mismatch for report in reports[1])
    assert first is not None
    assert second is not None
    assert first.engine_error.mean < 1e-5
    assert first.policy_lag.mean == 0
    assert second.engine_error.mean < 1e-5  # sampled by version 0, and computed under it
    assert second.policy_lag.mean > 1e-3
    ours, theirs = (learner.policy.weights() for learner in made)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
