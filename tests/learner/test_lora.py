"""Training an adapter: the base stands still, version 0 is the base, a version on disk is all there is to go on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from offbeat.durable import file_digest
from offbeat.learner.lora import adapter_weights, announced_adapter
from offbeat.learner.rescore import Rescorer
from offbeat.learner.step import PolicyLearner
from offbeat.ports import Sampling
from offbeat.records import Batch, Span, Trajectory
from offbeat.rollout.engine import Engine
from offbeat.settings import Settings
from tests.learner.conftest import settings

PROMPT, RESPONSE = (1, 2, 4, 9), (5, 9, 8, 11, 2)
LORA = {"rank": 4, "alpha": 8, "targets": ("q_proj", "v_proj", "down_proj")}


MakeBatch = Callable[..., Batch]


def with_lora() -> Settings:
    return settings(lora=LORA, learning_rate=0.02)


def test_version_0_is_the_base_and_only_the_adapter_moves(model_dir: Path, sample_batch: MakeBatch) -> None:
    plain, learner = PolicyLearner.open(model_dir, settings()), PolicyLearner.open(model_dir, with_lora())
    assert learner.score(PROMPT, RESPONSE) == plain.score(PROMPT, RESPONSE)
    before = {name: tensor.clone() for name, tensor in learner.policy.model.state_dict().items()}
    report = learner.step(sample_batch())
    assert report.skipped_updates == 0
    assert report.instruments is not None
    assert report.instruments.iteration_drift
    after = learner.policy.model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all(".lora_" in name for name in moved)
    assert learner.score(PROMPT, RESPONSE) != plain.score(PROMPT, RESPONSE)


def test_a_version_on_disk_is_an_adapter_and_training_goes_on_from_it_bit_for_bit(
    model_dir: Path, sample_batch: MakeBatch, tmp_path: Path
) -> None:
    learner = PolicyLearner.open(model_dir, with_lora())
    learner.step(sample_batch())
    learner.publish(tmp_path / "1")
    file = tmp_path / "1" / "model.safetensors"
    adapter = announced_adapter(file)
    assert adapter is not None
    assert (adapter.rank, adapter.targets, adapter.base) == (
        4, LORA["targets"], file_digest(model_dir / "model.safetensors")
    )  # fmt: skip
    assert load_file(file).keys() == adapter_weights(learner.policy.model).keys()
    again = PolicyLearner.restore(model_dir, tmp_path / "1", with_lora(), version=1)
    for one in (learner, again):
        one.step(sample_batch(iteration=1, seed=1))
    ours, theirs = learner.policy.weights(), again.policy.weights()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_engine_rescorer_and_exported_model_agree_with_the_learner(
    model_dir: Path, sample_batch: MakeBatch, tmp_path: Path
) -> None:
    learner = PolicyLearner.open(model_dir, with_lora())
    learner.step(sample_batch())
    learner.publish(tmp_path / "1")
    learner.export(tmp_path / "whole")
    target = learner.score(PROMPT, RESPONSE)
    engine = Engine(model_dir, slots=2, context=64)
    engine.load(1, tmp_path / "1" / "model.safetensors")
    np.testing.assert_allclose(engine.score(1, PROMPT, RESPONSE), target, atol=1e-4)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    with torch.no_grad():
        logprobs = whole(torch.tensor([[*PROMPT, *RESPONSE]])).logits[0].log_softmax(-1)
    exported = [float(logprobs[len(PROMPT) - 1 + i, token]) for i, token in enumerate(RESPONSE)]
    np.testing.assert_allclose(exported, target, atol=1e-4)
    trajectory = Trajectory(0, 0, (Span(1, RESPONSE, tuple(target)),), "length")
    again = Rescorer(model_dir, tmp_path / "1" / "model.safetensors").behaviour_logprobs(PROMPT, trajectory, Sampling())
    np.testing.assert_allclose(again, target, atol=1e-5)


def test_the_same_adapter_has_the_same_digest_every_time(model_dir: Path, tmp_path: Path) -> None:
    """A comparison of runs checks by it that they began alike."""
    digests = {PolicyLearner.open(model_dir, with_lora()).publish(tmp_path / str(number)) for number in range(8)}
    assert len(digests) == 1


def test_peft_is_not_imported_where_nothing_is_adapted() -> None:
    code = "import sys, offbeat.learner.step; sys.exit('peft' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
