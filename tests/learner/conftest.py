"""Tiny models with random weights and a word tokenizer; batches sampled from them by the slow oracle."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

from offbeat.ports import Sampling
from offbeat.records import Batch, Group, Prompt, Span, Trajectory
from offbeat.settings import Settings, settings_from
from tests.reference import grpo

VOCABULARY = 24
FAMILIES = {"qwen3": Qwen3Config, "qwen2": Qwen2Config, "llama": LlamaConfig}

torch.set_num_threads(1)


def save_model(directory: Path, family: str = "qwen3", **changes: Any) -> Path:
    shape = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
        "tie_word_embeddings": True, "initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(FAMILIES[family](**{**shape, **changes}), dtype=torch.float32)
    model.save_pretrained(directory)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="session")
def reference_logits() -> Callable[[Path, tuple[int, ...]], list[list[float]]]:
    """Logits [T, V] of one sequence by plain `transformers`, eager attention, no batch and no padding."""
    models_by_dir: dict[Path, Any] = {}

    def logits(directory: Path, ids: tuple[int, ...]) -> list[list[float]]:
        if directory not in models_by_dir:
            models_by_dir[directory] = AutoModelForCausalLM.from_pretrained(
                directory, dtype=torch.float32, attn_implementation="eager"
            ).eval()
        with torch.no_grad():
            return models_by_dir[directory](input_ids=torch.tensor([ids])).logits[0].double().tolist()

    return logits


@pytest.fixture(scope="session")
def sample_batch(model_dir: Path, reference_logits: Any) -> Callable[..., Batch]:
    """Batches whose behaviour log-probs are exact for the model's initial weights and the given sampling."""

    def trajectory(number: int, prompt: tuple[int, ...], length: int, sampling: Sampling, seed: int) -> Trajectory:
        rng = random.Random(seed * 1000 + number)
        ids, logprobs, supports = prompt, [], []
        cut = sampling.top_k > 0 or sampling.top_p < 1
        for _ in range(length):
            last = reference_logits(model_dir, ids)[-1]
            kept = (
                grpo.kept_ids(last, sampling.temperature, sampling.top_k, sampling.top_p) if cut else range(VOCABULARY)
            )
            logs = [grpo.logprob(last, j, sampling.temperature, tuple(kept)) for j in kept]
            chosen = rng.choices(range(len(logs)), [torch.tensor(x).exp().item() for x in logs])[0]
            ids += (kept[chosen],)
            logprobs.append(logs[chosen])
            supports.append(tuple(sorted(kept)))
        span = Span(0, ids[len(prompt) :], tuple(logprobs), tuple(supports) if cut else None)
        return Trajectory(number, 0, (span,), "stop")

    def batch(
        iteration: int = 0, groups: int = 3, size: int = 4, sampling: Sampling = Sampling(), seed: int = 0
    ) -> Batch:
        rng = random.Random(seed)
        made = []
        for number in range(groups):
            prompt = tuple(rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 7)))
            members = tuple(
                trajectory(number * size + i, prompt, rng.choice([1, 2, 3, 9]), sampling, seed) for i in range(size)
            )
            rewards = [float(i % 2) for i in range(size)]
            rng.shuffle(rewards)
            made.append(Group(number, Prompt(number, "test", "", "", prompt), members, tuple(rewards)))
        return Batch(iteration, tuple(made))

    return batch


def settings(rollout: dict[str, Any] | None = None, **learner: Any) -> Settings:
    return settings_from(
        {"learner": {"learning_rate": 1e-2, "warmup_iterations": 0, **learner}, "rollout": rollout or {}}
    )
