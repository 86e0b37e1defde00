from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from offbeat.errors import SettingsError, TaskError
from offbeat.models import prepare, prepare_policy, presets
from offbeat.models.presets import Preset, build_model, write_policy
from offbeat.models.prompts import misfit
from offbeat.models.tokens import load_tokenizer
from offbeat.records import Prompt
from offbeat.settings import RolloutSettings, Settings, settings_from
from tests.models.conftest import CopyTask

TINY = Preset(width=32, hidden=64, layers=2, heads=2, kv_heads=2)
QUICK = {
    "warm_start_target": 0.3,
    "warm_start_max_steps": 300,
    "warm_start_learning_rate": 1e-2,
    "warm_start_batch_size": 32,
}


def _settings(**model: Any) -> Settings:
    return settings_from({"model": {**QUICK, **model}})


@pytest.fixture
def cache(tmp_path: Path, copy_task: CopyTask, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, the copy task, and a preset that learns it in a second."""
    monkeypatch.setattr(prepare, "make_task", lambda settings, seed: copy_task)
    monkeypatch.setattr(prepare, "user_cache_path", lambda name: tmp_path / name)
    monkeypatch.setitem(presets.PRESETS, "nano", TINY)
    return tmp_path / "offbeat" / "policies"


def _weights(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


def test_a_preset_is_warm_started_once_and_rebuilt_when_damaged(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "MOST_THREADS", 1)
    heard: list[str] = []
    directory = prepare_policy(_settings(), lambda line, share: heard.append(line))
    assert any(line.startswith("warm start: step") for line in heard)
    assert AutoModelForCausalLM.from_pretrained(directory).config.model_type == "qwen3"
    assert len(load_tokenizer(directory)) == 100
    assert directory.parent == cache

    heard.clear()
    made = _weights(directory)
    assert prepare_policy(_settings(), lambda line, share: heard.append(line)) == directory
    assert heard == [f"model: {directory}"]

    (directory / "model.safetensors").write_bytes(made[:-1])
    prepare_policy(_settings(), lambda line, share: None)
    assert len(_weights(directory)) == len(made)
    assert AutoModelForCausalLM.from_pretrained(directory).num_parameters() > 0


def test_a_failed_warm_start_leaves_no_entry_and_restores_the_threads(cache: Path) -> None:
    torch.set_num_threads(1)
    with pytest.raises(TaskError, match="warm_start_max_steps = 1"):
        prepare_policy(_settings(warm_start_max_steps=1, warm_start_target=1.0), lambda line, share: None)
    assert torch.get_num_threads() == 1
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_a_context_beyond_the_presets_is_refused(cache: Path) -> None:
    settings = settings_from({"rollout": {"context": presets.CONTEXT + 1}})
    with pytest.raises(SettingsError, match=r"rollout\.context = 4097: the presets"):
        prepare_policy(settings, lambda line, share: None)


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"preset": "micro"}},
        {"model": {"warm_start_target": 0.4}},
        {"model": {"warm_start_learning_rate": 1e-3}},
        {"task": {"tail": 4.5}},
        {"task": {"name": "addition"}},
        {"rollout": {"max_new_tokens": 100}},
        {"rollout": {"context": 300}},
        {"run": {"seed": 1}},
    ],
)
def test_the_key_changes_with_all_that_determines_the_policy(change: dict[str, Any], copy_task: CopyTask) -> None:
    assert prepare.cache_key(settings_from(change), copy_task) != prepare.cache_key(Settings(), copy_task)


def test_the_key_does_not_change_with_anything_else(copy_task: CopyTask) -> None:
    other = settings_from({"learner": {"iterations": 3}, "task": {"reward_seconds": 3.0}, "rollout": {"lanes": 2}})
    assert prepare.cache_key(other, copy_task) == prepare.cache_key(Settings(), copy_task)


def test_the_key_changes_with_the_revision_of_its_task(copy_task: CopyTask, monkeypatch: pytest.MonkeyPatch) -> None:
    before = prepare.cache_key(Settings(), copy_task)
    monkeypatch.setitem(prepare.REVISIONS, "addition", "addition_v99")
    assert prepare.cache_key(Settings(), copy_task) == before
    monkeypatch.setitem(prepare.REVISIONS, Settings().task.name, "counting_v99")
    assert prepare.cache_key(Settings(), copy_task) != before


def test_the_key_changes_with_what_the_task_serves(tmp_path: Path, copy_task: CopyTask) -> None:
    assert prepare.cache_key(Settings(), CopyTask(suffix="!")) != prepare.cache_key(Settings(), copy_task)
    file = tmp_path / "prompts.jsonl"
    settings = settings_from({"task": {"name": "jsonl", "file": str(file)}})
    file.write_text("one")
    before = prepare.cache_key(settings, copy_task)
    file.write_text("two")
    assert prepare.cache_key(settings, copy_task) != before


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    directory = tmp_path_factory.mktemp("policy")
    write_policy(build_model(TINY, seed=0), directory)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def policy(saved: dict[str, bytes], tmp_path: Path) -> Path:
    directory = tmp_path / "policy"
    directory.mkdir()
    for name, content in saved.items():
        (directory / name).write_bytes(content)
    return directory


def test_a_directory_of_the_users_is_taken_as_it_is(policy: Path) -> None:
    before = sorted(policy.iterdir())
    assert prepare_policy(_settings(path=str(policy)), lambda line, share: None) == policy
    assert sorted(policy.iterdir()) == before


def _config(**changes: Any) -> Callable[[Path], None]:
    def change(policy: Path) -> None:
        file = policy / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def _write(name: str, text: str) -> Callable[[Path], None]:
    def change(policy: Path) -> None:
        (policy / name).write_text(text)

    return change


def _remove(*names: str) -> Callable[[Path], None]:
    def change(policy: Path) -> None:
        for name in names:
            (policy / name).unlink()

    return change


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (_remove("config.json"), r"config\.json is missing"),
        (_write("config.json", "{"), r"config\.json cannot be read"),
        (_write("config.json", "[]"), r"config\.json is not a JSON object"),
        (_config(model_type="gpt2"), r"model_type = 'gpt2'; give a model of llama, qwen2, qwen3"),
        (_config(max_position_embeddings=100), r"rollout\.context = \d+: .* takes 100 tokens"),
        (_config(vocab_size=50), "the tokenizer has 100 tokens, the model 50"),
        (_remove("model.safetensors"), r"model\.safetensors is missing; save the model with safetensors"),
        (_write("model.safetensors.index.json", "{}"), "no weight_map"),
        (_write("model.safetensors.index.json", '{"weight_map": {"a": "part-1.safetensors"}}'), "part-1.* is missing"),
        (_remove("tokenizer.json"), "no tokenizer; save the tokenizer"),
        (_write("tokenizer.json", "nonsense"), r"tokenizer\.json cannot be read"),
        (_write("tokenizer.json", "{}"), "the tokenizer cannot be loaded"),
    ],
)
def test_an_unusable_directory_is_one_line(spoil: Callable[[Path], None], complaint: str, policy: Path) -> None:
    spoil(policy)
    with pytest.raises(SettingsError, match=complaint) as caught:
        prepare_policy(_settings(path=str(policy)), lambda line, share: None)
    assert "\n" not in str(caught.value)
    assert str(policy) in str(caught.value)


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"model\.path = .*nowhere: no such directory; give"):
        prepare_policy(_settings(path=str(tmp_path / "nowhere")), lambda line, share: None)


def _exam(tmp_path: Path, prompt: str) -> dict[str, Any]:
    lines = [{"prompt": f"{i}=", "answer": "1"} for i in range(3)] + [{"prompt": prompt, "answer": "1"}]
    (tmp_path / "exam.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return {"task": {"name": "jsonl", "file": str(tmp_path / "exam.jsonl"), "held_out": 3}}


@pytest.mark.parametrize("of_the_user", [False, True])
def test_a_held_out_prompt_that_does_not_fit_is_refused_before_the_policy_is_made(
    tmp_path: Path, policy: Path, of_the_user: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "user_cache_path", lambda name: tmp_path / name)
    heard: list[str] = []
    for length in range(300, 340):
        chosen = _exam(tmp_path, "7" * length)
        task = prepare.make_task(settings_from(chosen).task, 0)
        if any(len(prompt.text) == length for prompt in task.held_out(3)):
            break
    if of_the_user:
        chosen["model"] = {"path": str(policy)}
    with pytest.raises(
        TaskError, match=rf"held-out prompt '7{{37}}\.\.\.' of exam has {length + 1} tokens; .*change these settings"
    ):
        prepare_policy(settings_from(chosen), lambda line, share: heard.append(line))
    assert heard == []


def test_prompts_fit_up_to_the_last_token() -> None:
    rollout = RolloutSettings(context=10, max_new_tokens=6)
    assert misfit(Prompt(0, "d", "", "", (1,) * 4), rollout) == ""
    assert "only 4 fit" in misfit(Prompt(0, "d", "", "", (1,) * 5), rollout)
    assert "no tokens" in misfit(Prompt(0, "d", "", "", ()), rollout)


@pytest.mark.parametrize("content", ["{}", "nonsense", '{"version": "1.0", "model": {"type": "Nonsense"}}'])
def test_a_damaged_tokenizer_raises_what_is_promised(policy: Path, content: str) -> None:
    (policy / "tokenizer.json").write_text(content)
    with pytest.raises((OSError, ValueError)):
        load_tokenizer(policy)
