"""With the trainers people use: transformers, TRL, Accelerate. Tiny models, the real libraries."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

from offbeat.align import GAC
from offbeat.align.trainer import AlignmentCallback

torch.set_num_threads(1)


def tiny_model() -> Qwen3ForCausalLM:
    set_seed(7)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, max_position_embeddings=32,
        )
    )  # fmt: skip


def rows(count: int = 64) -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 16, (count, 8), generator=generator).tolist()
    return [{"input_ids": row, "labels": row} for row in ids]


class Heard(TrainerCallback):
    """A logger that stands behind the callback, as TensorBoard's does."""

    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logs.append(dict(logs))


def trainer(folder: Path, callbacks: list[Any], **arguments: Any) -> Trainer:
    chosen = {
        "max_steps": 8, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 1e-2,
        "logging_steps": 2, "save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True, "seed": 3,
    }  # fmt: skip
    return Trainer(
        model=tiny_model(),
        args=TrainingArguments(output_dir=str(folder), **(chosen | arguments)),
        train_dataset=rows(),
        callbacks=callbacks,
    )


def weights(trained: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trained.model.parameters()])


def test_observed_training_is_bitwise_training_and_its_numbers_are_logged(tmp_path: Path) -> None:
    plain = trainer(tmp_path / "plain", [])
    plain.train()
    heard = Heard()
    watched = trainer(tmp_path / "watched", [heard])
    callback = AlignmentCallback.add_to(watched, mode="observe")
    watched.train()
    assert torch.equal(weights(plain), weights(watched))
    assert callback.gac.step == 8  # optimizer steps, not micro-batches
    training = [log for log in heard.logs if "loss" in log]
    assert len(training) == 4
    assert all(-1 <= log["align/cosine"] <= 1 for log in training)
    assert training[0]["align/invalid"] == 0.5
    history = [entry for entry in watched.state.log_history if "loss" in entry]
    assert [entry["align/cosine"] for entry in history] == [log["align/cosine"] for log in training]


def test_as_a_plain_callback_it_controls_and_is_in_the_history(tmp_path: Path) -> None:
    callback = AlignmentCallback(mode="orth", c_low=0.0, c_high=1.0)
    trained = trainer(tmp_path, [callback])
    trained.train()
    assert callback.gac.counts["projected"] > 2
    assert any(entry.get("align/projected", 0) > 0 for entry in trained.state.log_history)
    steps = callback.gac.step
    trained.train()  # a second training has another optimizer
    assert callback.gac.step == 8 == steps


@pytest.mark.parametrize("mode", ["cap", "off"])
def test_resumed_is_unbroken(tmp_path: Path, mode: str) -> None:
    chosen = {"mode": mode, "c_low": 0.0, "c_high": 0.9, "lags": (1, 2)}
    saved = {"save_strategy": "steps", "save_steps": 4, "save_only_model": False}
    unbroken_callback = AlignmentCallback(**chosen)
    unbroken = trainer(tmp_path / "a", [unbroken_callback], **saved)
    unbroken.train()
    callback = AlignmentCallback(**chosen)
    resumed = trainer(tmp_path / "a", [callback], **saved)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-4"))
    assert torch.equal(weights(unbroken), weights(resumed))
    assert callback.gac.last == unbroken_callback.gac.last
    assert callback.gac.counts == unbroken_callback.gac.counts


def test_trl_grpo(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trl = pytest.importorskip("trl")
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(16)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w0", eos_token="w1")
    trained = trl.GRPOTrainer(
        model=tiny_model(),
        reward_funcs=lambda completions, **_: [len(set(text.split())) / 8 for text in completions],
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=4,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=6,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            bf16=False,
            beta=0.0,
        ),
        train_dataset=datasets.Dataset.from_dict({"prompt": [f"w{i} w{i + 1}" for i in range(2, 14)]}),
        processing_class=tokenizer,
    )
    heard = Heard()
    trained.add_callback(heard)
    callback = AlignmentCallback.add_to(trained, mode="cap", c_low=0.0, c_high=1.0)
    trained.train()
    assert callback.gac.step == 4
    logged = [log for log in heard.logs if "loss" in log]
    assert all("reward" in log and "align/kept" in log for log in logged)
    assert any("align/cosine" in log for log in logged)


def test_accelerate_with_accumulation(tmp_path: Path) -> None:
    """Attached to what `prepare` returns; saved and loaded with the accelerator's state."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)

    def prepared() -> tuple[nn.Module, Any, GAC]:
        torch.manual_seed(1)
        model = nn.Linear(4, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
        return model, optimizer, GAC(optimizer, mode="cap", c_low=0.1, c_high=0.9)

    def steps(model: nn.Module, optimizer: Any, numbers: range) -> None:
        for number in numbers:
            x = torch.randn(4, 4, generator=torch.Generator().manual_seed(number))
            with accelerator.accumulate(model):
                accelerator.backward((model(x) - x.sum(dim=1, keepdim=True)).square().mean())
                optimizer.step()
                optimizer.zero_grad()

    model, optimizer, gac = prepared()
    steps(model, optimizer, range(8))
    assert gac.step == 4
    accelerator.save_state(str(tmp_path / "state"))
    steps(model, optimizer, range(8, 12))
    straight = model.weight.detach().clone(), gac.last
    accelerator.load_state(str(tmp_path / "state"))
    assert gac.step == 4
    steps(model, optimizer, range(8, 12))
    assert torch.equal(model.weight, straight[0])
    assert gac.last == straight[1]


def test_what_has_no_hooks_is_refused() -> None:
    class Engine:
        """As DeepSpeed's: a step of its own, gradients elsewhere."""

        optimizer = object()

    with pytest.raises(TypeError, match="not a torch"):
        GAC(Engine())
