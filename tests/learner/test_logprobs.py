"""At lag 0 target equals behaviour, whatever the sampling; both layouts give the same numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from offbeat.errors import WeightsError
from offbeat.learner.batches import Sample, samples_of
from offbeat.learner.layout import Layout, micro_batch, micro_batches
from offbeat.learner.logprobs import plain_logprobs, target_logprobs
from offbeat.learner.policy import Policy
from offbeat.ports import Sampling
from offbeat.records import Batch
from tests.learner.conftest import FAMILIES, VOCABULARY, save_model
from tests.reference import grpo

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(top_k=3),
    Sampling(top_p=0.7),
    Sampling(temperature=1.7, top_k=7, top_p=0.8),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("layout", ["plain", "shared", "tree"])
def test_at_lag_0_the_target_is_the_behaviour_policy(
    model_dir: Path, sample_batch: Callable[..., Batch], sampling: Sampling, layout: Layout
) -> None:
    policy = Policy.load(model_dir)
    groups = sample_batch(sampling=sampling).groups
    samples = [sample for group in groups for sample in samples_of(group, sampling, True, VOCABULARY)]
    for batch in micro_batches(samples, 150, layout):
        target, entropy = target_logprobs(policy, batch, sampling.temperature)
        torch.testing.assert_close(target.detach(), batch.behaviour_logprobs, atol=2e-5, rtol=0)
        assert entropy > 0


def test_without_its_support_a_cut_distribution_is_not_recovered(
    model_dir: Path, sample_batch: Callable[..., Batch]
) -> None:
    samples = samples_of(sample_batch(sampling=Sampling(top_k=2)).groups[0], Sampling(top_k=2), True, VOCABULARY)
    bare = [Sample(s.group_id, s.prompt_ids, s.response_ids, s.behaviour_logprobs, None, s.advantage) for s in samples]
    batch = micro_batch([bare])
    target, _ = target_logprobs(Policy.load(model_dir), batch, 1.0)
    assert (target - batch.behaviour_logprobs).abs().max() > 0.1


def test_gradient_of_a_cut_distribution_is_finite_and_stays_on_its_kept_ids(model_dir: Path) -> None:
    from offbeat.learner.layout import KeptIds
    from offbeat.learner.logprobs import log_distribution

    logits = torch.randn(2, 6, generator=torch.Generator().manual_seed(0)).requires_grad_(True)
    kept = KeptIds(torch.tensor([0, 0]), torch.tensor([1, 4]), torch.tensor([True, False]))
    log_distribution(logits, 0.5, kept)[[0, 1], [1, 2]].sum().backward()
    assert logits.grad is not None
    assert (logits.grad[0] != 0).tolist() == [False, True, False, False, True, False]
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_every_family_and_layout_agrees_with_plain_transformers(
    tmp_path: Path, reference_logits: Any, family: str, tied: bool
) -> None:
    directory = save_model(tmp_path, family, tie_word_embeddings=tied)
    policy = Policy.load(directory)
    assert policy.layout == "tree"
    rng = random.Random(5)
    prompt = tuple(rng.randrange(VOCABULARY) for _ in range(6))
    samples = []
    for length in (1, 4, 4, 17):
        tokens = tuple(rng.randrange(VOCABULARY) for _ in range(length))
        samples.append(Sample(0, prompt, tokens, (-1.0,) * length, None, 0.0))
    batches = [micro_batch([samples]), micro_batch([[s] for s in samples]), *micro_batches(samples, 99, "tree")]
    for batch in batches:
        found, _ = target_logprobs(policy, batch, 1.0)
        for row, sample in zip(found.tolist(), batch.samples, strict=True):
            logits = reference_logits(directory, sample.prompt_ids + sample.response_ids)
            expected = [
                grpo.logprob(logits[len(prompt) - 1 + i], token, 1.0, None)
                for i, token in enumerate(sample.response_ids)
            ]
            assert row[: len(expected)] == pytest.approx(expected, abs=2e-5)
            assert plain_logprobs(policy, prompt, sample.response_ids) == pytest.approx(expected, abs=2e-5)


def test_a_sliding_window_keeps_the_plain_layout(tmp_path: Path, reference_logits: Any) -> None:
    directory = save_model(tmp_path, "qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=0)
    policy = Policy.load(directory)
    assert policy.layout == "plain"
    ids = tuple(range(3, 15))
    logits = reference_logits(directory, ids)
    expected = [grpo.logprob(logits[i - 1], ids[i], 1.0, None) for i in range(4, 12)]
    assert plain_logprobs(policy, ids[:4], ids[4:]) == pytest.approx(expected, abs=2e-5)


def test_the_policy_has_no_dropout(tmp_path: Path) -> None:
    policy = Policy.load(save_model(tmp_path, "llama", attention_dropout=0.5))
    assert plain_logprobs(policy, (1, 2), (3, 4)) == plain_logprobs(policy, (1, 2), (3, 4))


def test_unusable_model_directories_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no config\.json"):
        Policy.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "hidden_size": 32}')
    with pytest.raises(WeightsError, match="transformers cannot load it") as caught:
        Policy.load(tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(WeightsError, match="transformers cannot load it"):
        Policy.blank(tmp_path)
