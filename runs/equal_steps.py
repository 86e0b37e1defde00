"""Claim: at equal steps multi-version with K = 1 learns like sync; with K = 3 it may lag a little per step, and leads
at equal wall-clock.

Trains the built-in default (shortened) under sync and under multi-version with K = 1 and 3, for several seeds, one
after the other, each from the same starting weights. Prints the mean reward of the last tenth of the iterations, the
gain in held-out exact match, and paired differences from sync with 95 % intervals (Student's t over seeds); then the
reward that each had when the quickest of these three was done. Three kinds of control ask where a difference comes
from: one-step-off, as stale as K = 1 and with sync's batches, none of which is made up of what was done first; K = 1
without the clip, which never acts on fresh data; and, for each of `--sync-rates`, sync at another learning rate, for
stale gradients that repeat each other go further at the same rate. Runs that `--out` holds already are not made again.

    python runs/equal_steps.py --seeds 5 --iterations 200 --sync-rates 2.5e-4 5e-4 7e-4 --out out/equal_steps
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from math import sqrt
from pathlib import Path

from offbeat.comparison.measures import measure, reward_at
from offbeat.report.read import read_run

ARMS = {
    "sync": ("schedule.name=sync",),
    "multi-version K=1": ("schedule.max_staleness=1",),
    "multi-version K=3": ("schedule.max_staleness=3",),
    "one-step-off": ("schedule.name=one-step-off",),
    "K=1 without clip": ("schedule.max_staleness=1", "learner.objective.clip_low=1", "learner.objective.clip_high=1e6"),
}
CLAIMED = ("sync", "multi-version K=1", "multi-version K=3")
"""What the claim is about; the others are controls."""
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Two-sided 95 % quantiles of Student's t by number of seeds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, choices=range(2, 11))
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("out/equal_steps"))
    parser.add_argument("--sync-rates", type=float, nargs="*", default=[])
    given = parser.parse_args()
    arms = dict(ARMS)
    for rate in given.sync_rates:
        arms[f"sync at {rate:g}"] = ("schedule.name=sync", f"learner.learning_rate={rate:g}")
    rows: dict[str, list[dict[str, float]]] = {arm: [] for arm in arms}
    for seed in range(given.seeds):
        measured = {}
        for arm, overrides in arms.items():
            directory = given.out / f"{arm.replace(' ', '-').replace('=', '')}-seed-{seed}"
            result = train(directory, seed, given.iterations, overrides)
            measured[arm] = measure(read_run(directory), warmup=10)
            gain = result["exact_match_after"] - result["exact_match_before"]
            rows[arm].append({"reward": measured[arm].reward_final, "gain": gain, "seconds": measured[arm].ends[-1]})
        shortest = min(measured[arm].ends[-1] for arm in CLAIMED)
        for arm in arms:
            rows[arm][-1]["then"] = reward_at(measured[arm], shortest) or 0.0
            last = rows[arm][-1]
            print(
                f"seed {seed}  {arm:18} reward {last['reward']:.3f}  held-out gain {last['gain']:+.3f}"
                f"  {last['seconds']:4.0f} s  reward after {shortest:.0f} s {last['then']:.3f}",
                flush=True,
            )
    print("\nless sync, paired over seeds (mean and 95 % interval)")
    for arm in list(arms)[1:]:
        for key in ("reward", "gain", "then"):
            print(
                f"{arm:18} {key:7} {interval([a[key] - b[key] for a, b in zip(rows[arm], rows['sync'], strict=True)])}"
            )


def train(directory: Path, seed: int, iterations: int, overrides: tuple[str, ...]) -> dict[str, float]:
    given = (*overrides, f"run.seed={seed}", f"learner.iterations={iterations}", "run.evaluate_every=0")
    settings = [part for override in given for part in ("--set", override)]
    begin = ["--resume", str(directory)] if directory.exists() else ["--out", str(directory), *settings]
    command = [sys.executable, "-m", "offbeat.cli", "train", *begin, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return dict(json.loads(done.stdout))


def interval(differences: list[float]) -> str:
    mean = statistics.fmean(differences)
    half = T_95[len(differences)] * statistics.stdev(differences) / sqrt(len(differences))
    return f"{mean:+.3f}  [{mean - half:+.3f}, {mean + half:+.3f}]"


if __name__ == "__main__":
    main()
