"""The TRL side of `versus_trl.py`, run by the Python of an environment that has both offbeat and trl.

Trains the policy of a run directory with `GRPOTrainer` on the prompts that offbeat would give it and with the same
reward, and saves the weights every `--every` seconds of training time (saving itself is not counted).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from offbeat.models.tokens import encode_prompt
from offbeat.settings import Settings
from offbeat.tasks import make_task


class Snapshots(TrainerCallback):
    """Saves the model on the way; `clock` runs while it trains and stands still while it saves."""

    def __init__(self, out: Path, every: float, seconds: float) -> None:
        self.out, self.every, self.seconds = out, every, seconds
        self.began = time.monotonic()
        self.next = 0.0
        self.saved: list[dict[str, Any]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        elapsed = time.monotonic() - self.began
        if elapsed >= self.next:
            place = self.out / f"step-{state.global_step}"
            kwargs["model"].save_pretrained(place)
            self.saved.append({"step": state.global_step, "seconds": elapsed, "model": str(place)})
            (self.out / "snapshots.json").write_text(json.dumps(self.saved))
            self.next = elapsed + self.every
            self.began += time.monotonic() - self.began - elapsed
        if elapsed > self.seconds:
            control.should_training_stop = True
        return control


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--every", type=float, default=15.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, required=True)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    settings = Settings.model_validate({"run": {"seed": given.seed}})
    task, schedule, rollout = make_task(settings.task, given.seed), settings.schedule, settings.rollout
    tokenizer = AutoTokenizer.from_pretrained(given.policy, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    count = given.steps * schedule.train_batch_size // schedule.group_size
    prompts = [task.prompt(i) for i in range(count)]
    by_text = {prompt.text: prompt for prompt in prompts}
    own = list(encode_prompt(tokenizer, prompts[0].text))
    if tokenizer(prompts[0].text)["input_ids"] != own:
        raise SystemExit(f"TRL would read prompts otherwise than offbeat: {tokenizer(prompts[0].text)} against {own}")

    def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        texts = [
            tokenizer.decode(ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids, skip_special_tokens=False)
            for ids in completion_ids
        ]
        return [task.reward(by_text[text], answer) for text, answer in zip(prompts, texts, strict=True)]

    config = GRPOConfig(
        output_dir=str(given.out / "trainer"), use_cpu=True, bf16=False, seed=given.seed, report_to=[],
        save_strategy="no", logging_steps=10, disable_tqdm=True, shuffle_dataset=False, activation_checkpointing=False,
        per_device_train_batch_size=schedule.train_batch_size, num_generations=schedule.group_size,
        max_completion_length=rollout.max_new_tokens, temperature=rollout.temperature, beta=0.0, loss_type="dapo",
        learning_rate=given.learning_rate, lr_scheduler_type="linear", warmup_steps=settings.learner.warmup_iterations,
        weight_decay=0.0, max_grad_norm=settings.learner.max_gradient_norm, max_steps=given.steps,
    )  # fmt: skip
    given.out.mkdir(parents=True)
    snapshots = Snapshots(given.out, given.every, given.seconds)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(given.policy, dtype=torch.float32), args=config,
        reward_funcs=reward, processing_class=tokenizer, callbacks=[snapshots],
        train_dataset=Dataset.from_list([{"prompt": prompt.text} for prompt in prompts]),
    )  # fmt: skip
    snapshots.began = time.monotonic()
    trainer.train()


if __name__ == "__main__":
    main()
