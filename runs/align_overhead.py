"""Claim: alignment control costs at most 2 % of a learner's step, at a million parameters or more.

The learner of a preset with and without, on the same batches, in turns and in random order; the figure is the median of
the ratios made batch by batch. Responses are noise: 128 trajectories of 96 tokens.

    python runs/align_overhead.py [--pairs 6] [--preset micro]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
import time
from itertools import accumulate
from pathlib import Path

import torch

from offbeat.backends.alignment import attach_alignment
from offbeat.learner.step import PolicyLearner
from offbeat.models.presets import PRESETS, build_model, write_policy
from offbeat.records import Batch, Group, Prompt, Span, Trajectory
from offbeat.settings import settings_from

GROUPS, SIZE, PROMPT, LENGTH = 16, 8, 12, 96
ARMS: dict[str, dict[str, object]] = {
    "without": {},
    "without again": {},
    "cosine only": {"mode": "cap", "c_low": 0.0, "c_high": 1.0, "update_cosine": False},
    "default": {"mode": "cap", "c_low": 0.0, "c_high": 1.0},
}
"""c_low = 0: every other step or so is projected, the dearer case."""


def batch(iteration: int, learner: PolicyLearner) -> Batch:
    """Noise with the behaviour log-probs of the uniform distribution; rewards differ within every group."""
    rng = random.Random(iteration)
    groups = []
    for number in range(GROUPS):
        prompt = Prompt(number, "noise", "", "", tuple(rng.randrange(4, 90) for _ in range(PROMPT)))
        members = []
        for i in range(SIZE):
            ids = tuple(rng.randrange(4, 90) for _ in range(LENGTH))
            members.append(Trajectory(number * SIZE + i, 0, (Span(iteration, ids, (-4.6,) * LENGTH),), "length"))
        groups.append(Group(number, prompt, tuple(members), tuple(float(i % 2) for i in range(SIZE))))
    return Batch(iteration, tuple(groups))


def below_the_median(count: int) -> int:
    """The place in sorted values, and from their end, between which the median lies with 95 % (by signs)."""
    chances = [math.comb(count, k) / 2**count for k in range(count + 1)]
    return max(0, sum(total <= 0.025 for total in accumulate(chances)) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="micro")
    chosen = parser.parse_args()
    if chosen.pairs < 6:
        parser.error(f"--pairs {chosen.pairs}: at least 6 for an interval of 95 %")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_policy(build_model(PRESETS[chosen.preset], seed=0), Path(folder))
        learners = {
            name: PolicyLearner.open(
                Path(folder), settings_from({"learner": {"align": align}}), attach=attach_alignment if align else None
            )
            for name, align in ARMS.items()
        }
        parameters = sum(p.numel() for p in learners["without"].policy.model.parameters())
        taken: dict[str, list[float]] = {name: [] for name in ARMS}
        for number in range(chosen.pairs + 2):
            made = batch(number, learners["without"])
            for name in sorted(ARMS, key=lambda name: random.Random(f"{number}{name}").random()):
                began = time.perf_counter()
                learners[name].step(made)
                taken[name].append(time.perf_counter() - began)
            print(f"pair {number}: {[round(times[-1], 3) for times in taken.values()]} s", file=sys.stderr, flush=True)
    print(f"{parameters:,} parameters, {GROUPS * SIZE} trajectories of {LENGTH} tokens, {chosen.pairs} pairs, 1 thread")
    without = taken["without"][2:]
    print(f"a step without: {statistics.median(without):.3f} s")
    for name in list(ARMS)[1:]:
        ratios = sorted(a / b for a, b in zip(taken[name][2:], without, strict=True))
        quarter, low = len(ratios) // 4, below_the_median(len(ratios))
        print(
            f"{name:14} {100 * (statistics.median(ratios) - 1):+6.2f} %"
            f"   (95 % {100 * (ratios[low] - 1):+.2f} to {100 * (ratios[-1 - low] - 1):+.2f},"
            f" quartiles {100 * (ratios[quarter] - 1):+.2f} to {100 * (ratios[-1 - quarter] - 1):+.2f})"
        )


if __name__ == "__main__":
    main()
