"""Claim: to +0.30 held-out exact match (greedy) on the default task offbeat takes at most a third of the time of TRL's
`GRPOTrainer`, from the same starting weights, with the same group and batch sizes, reward and cores.

TRL lives in an environment of its own:

    python -m venv .venv-trl && .venv-trl/bin/pip install -c constraints.txt -e . trl
    python runs/versus_trl.py --trl-python .venv-trl/bin/python --learning-rates 1e-4 2e-4 3.5e-4 --out out/versus_trl

offbeat's clock starts when its processes do and includes its evaluations; TRL's when it begins to train, and its
weights are evaluated afterwards by offbeat's engine on the same held-out prompts. Every rate given is tried for TRL and
its best counts. TRL is given up after `--patience` times offbeat's time; the ratio is then below one over that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import torch

from offbeat import events as e
from offbeat.live.prompts import PromptBook
from offbeat.models.prepare import prepare_policy
from offbeat.ports import Request, Sampling
from offbeat.report.read import read_run
from offbeat.rollout.engine import Engine
from offbeat.settings import Settings
from offbeat.tasks import make_task
from offbeat.tasks.verdicts import exact_match

WANTED = 0.30


def ours(directory: Path, seed: int, every: int) -> list[tuple[float, float]]:
    """(seconds, greedy held-out exact match) of a default run, evaluated every so many iterations."""
    overrides = ["--set", f"run.seed={seed}", "--set", f"run.evaluate_every={every}"]
    command = [sys.executable, "-m", "offbeat.cli", "train", "--out", str(directory), "--json", *overrides]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    records = read_run(directory).records
    return [(r.now, r.event.exact_match_greedy) for r in records if isinstance(r.event, e.Evaluated)]


def theirs(
    python: Path, policy: Path, out: Path, seed: int, rate: float, seconds: float, threads: int
) -> list[tuple[float, float]]:
    arm = Path(__file__).with_name("versus_trl_arm.py")
    command = [
        str(python), str(arm), "--policy", str(policy), "--out", str(out), "--seed", str(seed),
        "--steps", str(Settings().learner.iterations), "--seconds", str(seconds), "--threads", str(threads),
        "--learning-rate", str(rate),
    ]  # fmt: skip
    with (out.parent / "trl.log").open("a") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True)
    saved = json.loads((out / "snapshots.json").read_text())
    return [(s["seconds"], held_out(policy, Path(s["model"]) / "model.safetensors", seed)) for s in saved]


def held_out(policy: Path, weights: Path, seed: int) -> float:
    """Greedy exact match on the run's held-out prompts."""
    settings = Settings.model_validate({"run": {"seed": seed}})
    book = PromptBook(make_task(settings.task, seed), policy, settings.task.held_out)
    engine = Engine(policy, slots=64, context=settings.rollout.context)
    engine.load(0, weights)
    for i, prompt in enumerate(book.held_out):
        engine.submit(Request(i, 0, prompt.token_ids, 0, settings.rollout.max_new_tokens, Sampling(0.0)))
    right = 0
    while engine.decoded():
        right += sum(
            exact_match(book.held_out[done.request_id], book.text(done.token_ids)) for done in engine.step()
        )  # fmt: skip
    return right / len(book.held_out)


def first_time(points: list[tuple[float, float]]) -> float | None:
    """Seconds until exact match is WANTED above where it began, interpolated between two evaluations."""
    for (before, low), (after, high) in pairwise(points):
        target = points[0][1] + WANTED
        if high >= target:
            return before + (after - before) * (target - low) / (high - low)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--patience", type=float, default=3.3, help="times offbeat's time, then TRL is given up")
    parser.add_argument("--threads", type=int, default=2, help="of TRL's process")
    parser.add_argument(
        "--learning-rates", type=float, nargs="+", default=[Settings().learner.learning_rate], help="of TRL, each tried"
    )
    parser.add_argument("--out", type=Path, default=Path("out/versus_trl"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    for seed in range(given.first, given.first + given.seeds):
        points = ours(given.out / f"offbeat-{seed}", seed, every=50)
        tell(f"seed {seed} offbeat", points)
        mine = first_time(points)
        if mine is None:
            print(f"seed {seed}: offbeat did not reach +{WANTED}")
            continue
        policy = prepare_policy(Settings.model_validate({"run": {"seed": seed}}), lambda line, share: None)
        best, seconds = None, given.patience * mine
        for rate in given.learning_rates:
            place = given.out / f"trl-{seed}-{rate:g}"
            curve = theirs(given.trl_python, policy, place, seed, rate, seconds, given.threads)
            tell(f"seed {seed} TRL at {rate:g}", curve)
            reached = first_time(curve)
            best = reached if best is None else min(best, reached or best)
        if best is None:
            print(
                f"seed {seed}: offbeat {mine:.0f} s; TRL not within {seconds:.0f} s: ratio below {mine / seconds:.2f}"
            )
        else:
            print(f"seed {seed}: offbeat {mine:.0f} s, TRL {best:.0f} s at best: ratio {mine / best:.2f}")


def tell(whose: str, curve: list[tuple[float, float]]) -> None:
    print(f"{whose}: " + ", ".join(f"{t:.0f} s {x:.3f}" for t, x in curve), flush=True)


if __name__ == "__main__":
    main()
