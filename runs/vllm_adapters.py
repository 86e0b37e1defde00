"""Claim: with versions as LoRA adapters on one vLLM engine, multi-version trains at least 1.5 times the trajectories a
second of `sync`, two versions and more being decoded in one batch.

The same task, model and settings under both schedules by `offbeat compare`, one after the other on the same machine;
versions at once are counted from the run log. The response limit is the default task's, whose lengths are heavy-tailed.

    make vllm
    python runs/vllm_adapters.py --iterations 30 --repeats 3
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

BAR = 1.5
ON_VLLM = ("rollout.engine=vllm", "learner.lora.rank=8", "learner.lora.alpha=16", "learner.learning_rate=0.001")


def most_versions_at_once(run: Path) -> int:
    """Versions of the responses that were in slots at one moment, at most."""
    with closing(sqlite3.connect(run / "run.sqlite")) as db:
        bodies = [json.loads(body) for [body] in db.execute("SELECT body FROM events WHERE kind = 'Finished'")]
    begun = [(body["started"], 1, body["version"]) for body in bodies]
    ended = [(body["ended"], 0, body["version"]) for body in bodies]
    moments = sorted(begun + ended)
    running: dict[int, int] = {}
    most = 0
    for _, begins, version in moments:
        running[version] = running.get(version, 0) + (1 if begins else -1)
        most = max(most, sum(count > 0 for count in running.values()))
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out/vllm-adapters"))
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="section.key=value, of both runs")
    given = parser.parse_args()
    overrides = [part for each in (*ON_VLLM, *given.overrides) for part in ("--set", each)]
    command = [
        sys.executable, "-m", "offbeat.cli", "compare", "--schedules", "sync,multi-version", "--json",
        "--iterations", str(given.iterations), "--warmup", str(given.warmup), "--repeats", str(given.repeats),
        "--out", str(given.out), *overrides,
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(json.dumps(json.loads(done.stdout), indent=1))
    for log in sorted(given.out.rglob("run.sqlite")):
        print(f"{log.parent}: at most {most_versions_at_once(log.parent)} versions decoded at once")
    print(f"bar: multi-version at {BAR} times sync")


if __name__ == "__main__":
    main()
