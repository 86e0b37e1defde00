"""Bitwise resume; damage and strangers are refused in one line; an export loads with transformers."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from offbeat.errors import InvariantError, WeightsError
from offbeat.learner.step import PolicyLearner
from offbeat.records import Batch
from offbeat.settings import LearnerSettings
from tests.learner.conftest import save_model, settings
from tests.learner.test_step import assert_same, poison, state_of

MakeBatch = Callable[..., Batch]


def momentum_in_two_groups(parameters: Iterable[nn.Parameter], chosen: LearnerSettings) -> torch.optim.Optimizer:
    """Another optimizer, its parameters in another order: a checkpoint must not depend on AdamW."""
    parameters = list(parameters)
    groups = [{"params": parameters[3:]}, {"params": parameters[:3], "lr": chosen.learning_rate / 2}]
    return torch.optim.SGD(groups, lr=chosen.learning_rate, momentum=0.9)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("other", [False, True], ids=["adamw", "other"])
def test_two_steps_saved_and_two_more_are_four_steps_bit_for_bit(
    tmp_path: Path, sample_batch: MakeBatch, tied: bool, other: bool
) -> None:
    model_dir = save_model(tmp_path / "model", tie_word_embeddings=tied)
    chosen = settings(warmup_iterations=3, updates_per_iteration=2, weight_decay=0.01)
    factory = {"optimizer_factory": momentum_in_two_groups} if other else {}
    batches = [sample_batch(iteration, seed=iteration) for iteration in range(4)]
    straight = PolicyLearner.open(model_dir, chosen, **factory)
    reports = [straight.step(batch) for batch in batches]
    first = PolicyLearner.open(model_dir, chosen, **factory)
    for batch in batches[:2]:
        first.step(batch)
    first.save(tmp_path / "2")
    torch.manual_seed(99)
    second = PolicyLearner.restore(model_dir, tmp_path / "2", chosen, 2, **factory)
    assert_same(state_of(first), state_of(second))
    again = [second.step(batch) for batch in batches[2:]]
    assert_same(state_of(straight), state_of(second))
    assert (second.version, [r.loss for r in again]) == (4, [r.loss for r in reports[2:]])
    assert [r.learning_rate for r in again] == [r.learning_rate for r in reports[2:]]
    assert second.save(tmp_path / "4") == straight.publish(tmp_path / "straight")


def test_digest_names_and_metadata(model_dir: Path, tmp_path: Path, sample_batch: MakeBatch) -> None:
    learner = PolicyLearner.open(model_dir, settings())
    learner.step(sample_batch())
    digest = learner.save(tmp_path / "deep" / "1")
    file = tmp_path / "deep" / "1" / "model.safetensors"
    assert digest == hashlib.sha256(file.read_bytes()).hexdigest()
    assert load_file(file).keys() == load_file(model_dir / "model.safetensors").keys()
    with safe_open(file, framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    assert sorted(path.name for path in file.parent.iterdir()) == ["model.safetensors", "optimizer.safetensors"]
    state = load_file(file.parent / "optimizer.safetensors")
    assert "state/model.embed_tokens.weight/exp_avg" in state
    assert learner.save(tmp_path / "deep" / "1") == digest


def test_a_fresh_learner_and_its_skips_survive(model_dir: Path, tmp_path: Path, sample_batch: MakeBatch) -> None:
    learner = PolicyLearner.open(model_dir, settings())
    learner.save(tmp_path / "0")
    assert PolicyLearner.restore(model_dir, tmp_path / "0", settings(), 0).version == 0
    poison(learner, float("nan"), times=1)
    learner.step(sample_batch())
    learner.save(tmp_path / "1")
    restored = PolicyLearner.restore(model_dir, tmp_path / "1", settings())
    assert (restored.version, restored.consecutive_skips) == (1, 1)


@pytest.fixture
def saved(model_dir: Path, tmp_path: Path, sample_batch: MakeBatch) -> Path:
    learner = PolicyLearner.open(model_dir, settings())
    learner.step(sample_batch())
    learner.save(tmp_path / "1")
    return tmp_path / "1"


def refused(model_dir: Path, directory: Path, message: str, version: int | None = None) -> None:
    with pytest.raises(WeightsError, match=message) as caught:
        PolicyLearner.restore(model_dir, directory, settings(), version)
    assert "\n" not in str(caught.value)


def test_damaged_and_missing_files_are_refused(model_dir: Path, saved: Path) -> None:
    refused(model_dir, saved.parent / "nowhere", "no such file")
    refused(model_dir, saved, "is of version 1, not 7", version=7)
    for name in ("optimizer.safetensors", "model.safetensors"):
        content = (saved / name).read_bytes()
        (saved / name).write_bytes(content[: len(content) // 2])
        refused(model_dir, saved, f"{name}: damaged or not safetensors")
    (saved / "model.safetensors").write_bytes(b"\x80\x04pickle")
    refused(model_dir, saved, "damaged or not safetensors")


def test_weights_of_another_shape_name_or_type_are_refused(model_dir: Path, saved: Path, tmp_path: Path) -> None:
    wider = save_model(tmp_path / "wider", intermediate_size=64)
    refused(wider, saved, r"mlp\..* is torch.float32 \(.*the model has")
    refused(save_model(tmp_path / "deeper", num_hidden_layers=3), saved, "missing .model.layers.2")
    refused(save_model(tmp_path / "shallower", num_hidden_layers=1), saved, "unknown .model.layers.1")
    tensors = load_file(saved / "model.safetensors")
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, saved / "model.safetensors")
    refused(model_dir, saved, "is torch.bfloat16")


def test_optimizer_state_of_other_weights_is_refused(model_dir: Path, saved: Path) -> None:
    tensors = load_file(saved / "model.safetensors")
    tensors["model.norm.weight"] += 1
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    refused(model_dir, saved, "belongs to weights")
    (saved / "optimizer.safetensors").write_bytes((model_dir / "model.safetensors").read_bytes())
    refused(model_dir, saved, "not an optimizer state of offbeat")


def test_optimizer_state_of_another_shape_or_kind_is_refused(model_dir: Path, saved: Path) -> None:
    file = saved / "optimizer.safetensors"
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    name = "state/model.norm.weight/exp_avg"
    save_file({**tensors, name: torch.zeros(3)}, file, metadata=metadata)
    refused(model_dir, saved, r"exp_avg of model.norm.weight has shape \(3,\)")
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, file, metadata=metadata)
    refused(model_dir, saved, "does not fit this optimizer")
    save_file(tensors, file, metadata=metadata)
    with pytest.raises(WeightsError, match="other parameters"):
        PolicyLearner.restore(model_dir, saved, settings(), optimizer_factory=momentum_in_two_groups)


def test_state_that_needs_pickle_is_not_saved(model_dir: Path, tmp_path: Path) -> None:
    learner = PolicyLearner.open(model_dir, settings())
    learner.optimizer.param_groups[0]["schedule"] = lambda: 1
    with pytest.raises(InvariantError, match="cannot be stored without pickle"):
        learner.save(tmp_path)


def test_an_export_loads_with_transformers(model_dir: Path, tmp_path: Path, sample_batch: MakeBatch) -> None:
    learner = PolicyLearner.open(model_dir, settings())
    learner.step(sample_batch())
    learner.export(tmp_path / "export")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    assert model.dtype == torch.float32
    logits = model(input_ids=torch.tensor([[3, 4, 5]])).logits[0, 1].log_softmax(-1)
    assert learner.score((3, 4), (5,)) == pytest.approx([logits[5].item()], abs=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "export")("w3 w4")["input_ids"] == [3, 4]
    assert PolicyLearner.open(tmp_path / "export", settings()).score((3, 4), (5,)) == learner.score((3, 4), (5,))


def test_an_export_appears_whole_or_not_at_all(
    model_dir: Path, tmp_path: Path, sample_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = PolicyLearner.open(model_dir, settings())

    def dies(*arguments: object, **keywords: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as hurt:
        hurt.setattr("safetensors.torch.save_file", dies)
        with pytest.raises(OSError, match="space"):
            learner.export(tmp_path / "export")
    assert not (tmp_path / "export").exists()
    learner.export(tmp_path / "export")
    learner.step(sample_batch())
    learner.export(tmp_path / "export")
    assert PolicyLearner.open(tmp_path / "export", settings()).score((3, 4), (5,)) == learner.score((3, 4), (5,))
    assert not (tmp_path / ".export.writing").exists()


def test_importing_the_room_imports_no_torch() -> None:
    code = "import sys, offbeat.learner; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
