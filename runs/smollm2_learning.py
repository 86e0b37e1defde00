"""Claim: SmolLM2-135M-Instruct, trained with LoRA on one-digit products of reasoning-gym on vLLM (or the local
engine), raises its held-out reward in at most 45 minutes a seed on two cores, significantly over three seeds.

Every seed trains a run of its own, which must pass its audit. Then base model and trained adapter answer the same
held-out prompts with the same seeds at temperature 1; the test is paired over prompts, all seeds together: a sign-flip
permutation test of the mean difference of rewards (and of exact matches), with a bootstrap interval. The control is
the best constant answer: a model that only learnt to say what is most often right reaches its share of exact matches.

    offbeat models get smollm2-135m && make vllm
    python runs/smollm2_learning.py --seeds 3 --minutes 21 --set learner.matmul_precision=bfloat16
    python runs/smollm2_learning.py --config examples/smollm2_local.toml --out out/smollm2-local
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from offbeat.models.prompts import encoded_exam
from offbeat.models.tokens import decode_response, load_tokenizer
from offbeat.ports import Request
from offbeat.report.read import read_run
from offbeat.rollout.engine import Engine
from offbeat.tasks import make_task

CLOSING_MINUTES = 3.0
"""What a run needs after its time limit: the last batch, the exam, the export."""
SHUFFLES = 10_000


def train(config: Path, seed: int, out: Path, minutes: float, overrides: list[str]) -> dict[str, float]:
    """The summary of a run; one that is there already is gone on with."""
    limit = (minutes - CLOSING_MINUTES) * 60
    begin = [
        str(config),
        "--out",
        str(out),
        "--set",
        f"run.seed={seed}",
        "--set",
        f"run.time_limit_seconds={limit:.0f}",
    ]
    begin += [part for each in overrides for part in ("--set", each)]
    given = ["--resume", str(out)] if out.exists() else begin
    done = subprocess.run(
        [sys.executable, "-m", "offbeat.cli", "train", *given, "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    audit = subprocess.run([sys.executable, "-m", "offbeat.cli", "verify", str(out), "--json"], stdout=subprocess.PIPE)
    assert audit.returncode == 0, f"{out}: the audit found violations"
    return json.loads(done.stdout)


def rewards(directory: Path, prompts: int) -> tuple[np.ndarray, float]:
    """Rewards [2, prompts] of base model and newest version on the same held-out prompts, with the same seeds; and the
    share of these prompts whose answer is the most frequent one."""
    run = read_run(directory)
    settings = run.settings
    tokenizer, task = load_tokenizer(run.policy_directory), make_task(settings.task, settings.run.seed)
    exam = encoded_exam(tokenizer, task, prompts)
    engine = Engine(run.policy_directory, slots=64, context=settings.rollout.context)
    newest = max((directory / "versions").glob("[0-9]*"))
    engine.load(0, run.policy_directory / "model.safetensors")
    engine.load(1, newest / "model.safetensors")
    for version in (0, 1):
        for number, prompt in enumerate(exam):
            limit = settings.rollout.max_new_tokens
            engine.submit(Request(version * prompts + number, version, prompt.token_ids, number, limit))
    found = np.zeros(2 * prompts)
    while engine.decoded():
        for done in engine.step():
            text = decode_response(tokenizer, done.token_ids)
            found[done.request_id] = task.reward(exam[done.request_id % prompts], text)
    [(_, commonest)] = Counter(prompt.answer for prompt in exam).most_common(1)
    return found.reshape(2, prompts), commonest / prompts


def tested(name: str, before: np.ndarray, after: np.ndarray) -> None:
    """Sign-flip permutation test and bootstrap interval of the mean difference, paired."""
    rng, apart = np.random.default_rng(0), after - before
    flips = rng.choice([-1.0, 1.0], size=(SHUFFLES, apart.size)) @ apart / apart.size
    p = (1 + (np.abs(flips) >= abs(apart.mean())).sum()) / (1 + SHUFFLES)
    again = rng.choice(apart, size=(SHUFFLES, apart.size)).mean(1)
    low, high = np.quantile(again, [0.025, 0.975])
    print(
        f"{name}: {before.mean():.3f} -> {after.mean():.3f}, rise {apart.mean():+.3f}"
        f" (95 % interval {low:+.3f} to {high:+.3f}), p = {p:.2g}, {apart.size} pairs",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=Path(__file__).parents[1] / "examples/smollm2_vllm.toml")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("out/smollm2"))
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="section.key=value, of every run")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    found = []
    for seed in range(given.seeds):
        directory = given.out / f"seed-{seed}"
        summary = train(given.config, seed, directory, given.minutes, given.overrides)
        print(f"seed {seed}: {summary['iterations']} iterations in {summary['wall_seconds'] / 60:.1f} min", flush=True)
        answered, constant = rewards(directory, given.prompts)
        found.append(answered)
        tested(f"seed {seed}, reward", *answered)
        exact = (answered == 1).mean(axis=1)
        print(
            f"seed {seed}, exact match {exact[0]:.3f} -> {exact[1]:.3f}; best constant answer {constant:.3f}",
            flush=True,
        )
    before, after = np.concatenate(found, axis=1)
    tested("all seeds, reward", before, after)
    tested("all seeds, exact match", (before == 1).astype(float), (after == 1).astype(float))


if __name__ == "__main__":
    main()
