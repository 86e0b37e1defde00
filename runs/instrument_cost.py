"""Claim: measuring drift slows a learner's step of the default model and batch by less than 3 %.

Learners in processes of their own step on the same batch in turn; printed are medians of paired ratios over the first
arm: without (`learner.measure_drift = false`), with drift (`learner.mismatch_trajectories = 0`), with the log-probs of
some trajectories computed again under the version that sampled, too (the default); and, where `--before` names the
`src` directory of another version of offbeat (a worktree of an earlier commit, say), that version's learner.

    python runs/instrument_cost.py --steps 30 --before ../earlier/src
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def aged(groups: Sequence[Any], version: int, age: Callable[[int], int]) -> Any:
    """A batch of the same responses for the learner's iteration `version`, those of group i `age(i)` versions old."""
    from msgspec.structs import replace

    from offbeat.records import Batch

    found = []
    for group in groups:
        of = max(0, version - age(group.group_id))
        members = [replace(t, spans=tuple(replace(s, version=of) for s in t.spans)) for t in group.trajectories]
        found.append(replace(group, trajectories=tuple(members)))
    return Batch(version, tuple(found))


def worker(model: Path, changes: dict[str, object]) -> None:
    """Step once for every line on standard input; print the seconds it took."""
    import torch

    from offbeat.learner.step import PolicyLearner
    from offbeat.records import Group, Prompt, Span, Trajectory
    from offbeat.settings import settings_from

    torch.set_num_threads(1)
    settings = settings_from({"learner": {"learning_rate": 1e-5, **changes}})
    learner = PolicyLearner.open(model, settings)
    schedule, rng = settings.schedule, random.Random(0)
    vocabulary = learner.policy.vocabulary
    groups = []
    for number in range(schedule.train_batch_size // schedule.group_size):
        prompt = tuple(rng.randrange(3, vocabulary) for _ in range(12))
        members = []
        for i in range(schedule.group_size):
            length = min(settings.rollout.max_new_tokens, int(8 * rng.paretovariate(1.1)))
            ids = tuple(rng.randrange(3, vocabulary) for _ in range(length))
            span = Span(0, ids, tuple(min(0.0, x) for x in learner.score(prompt, ids)))
            members.append(Trajectory(number * schedule.group_size + i, 0, (span,), "stop"))
        rewards = tuple(float(rng.random() < 0.5) for _ in members)
        groups.append(Group(number, Prompt(number, "random", "", "", prompt), tuple(members), rewards))
    for _ in sys.stdin:
        batch = aged(groups, learner.version, lambda number: number % 3)
        started = time.perf_counter()
        learner.step(batch)
        print(time.perf_counter() - started, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(Path(given.worker[0]), json.loads(given.worker[1]))
        return
    from offbeat.models.presets import PRESETS, build_model, write_policy

    arms: dict[str, tuple[dict[str, object], Path | None]] = {
        "without": ({"measure_drift": False}, None),
        "drift": ({"mismatch_trajectories": 0}, None),
        "and mismatch": ({}, None),
    }
    if given.before is not None:
        arms["before"] = ({}, given.before)
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch)
        policy = build_model(PRESETS[given.preset], seed=0)
        write_policy(policy, model)
        processes = {}
        for name, (changes, source) in arms.items():
            environment = os.environ | ({"PYTHONPATH": str(source.resolve())} if source else {})
            processes[name] = subprocess.Popen(
                [sys.executable, __file__, "--worker", str(model), json.dumps(changes)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            )  # fmt: skip
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(given.steps + 3):
            for name, process in processes.items():
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("step\n")
                process.stdin.flush()
                seconds[name].append(float(process.stdout.readline()))
        for process in processes.values():
            process.communicate()
    parameters = sum(parameter.numel() for parameter in policy.parameters())
    print(f"{given.preset}, {parameters:,} parameters, {given.steps} steps in turn")
    first = next(iter(arms))
    for name, times in seconds.items():
        times = times[3:]
        ratios = [own / other for own, other in zip(times, seconds[first][3:], strict=True)]
        print(f"{name:14} {1e3 * statistics.median(times):7.1f} ms, over {first}: {statistics.median(ratios):.4f}")


if __name__ == "__main__":
    main()
