"""Claim: multi-version is at least 2.0 times as fast as sync, 1.4 times as one-step-off, 1.15 times as partial and as
fast as repack, in trajectories a second on the default task with K = 2, all in one run; each figure is a median of
paired ratios.

Runs `offbeat compare` with the built-in default and prints each ratio beside its bar. What keeps a ratio below its bar
is the learner, which no schedule can hide; with smaller batches it has less to do and the longest response is as long:

    python runs/schedules.py --repeats 3 --out out/schedules
    python runs/schedules.py --repeats 3 --set schedule.train_batch_size=32 --schedules multi-version,sync,one-step-off
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

BARS = {"sync": 2.0, "one-step-off": 1.4, "partial": 1.15, "repack": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("out/schedules"))
    parser.add_argument("--schedules", default="", help="all of them without this")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    given = parser.parse_args()
    command = [
        sys.executable, "-m", "offbeat.cli", "compare", "--out", str(given.out), "--json",
        "--repeats", str(given.repeats), "--iterations", str(given.iterations),
        *(["--schedules", given.schedules] if given.schedules else []),
        *(part for override in given.overrides for part in ("--set", override)),
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)["schedules"]
    ratios = found["multi-version"]["speedup"]
    print("multi-version over  ratio   bar")
    for name, ratio in ratios.items():
        bar = BARS.get(name)
        print(f"{name:18}  {ratio:5.2f}  {'none' if bar is None else format(bar, '.2f')}")
    ours = found["multi-version"]
    share = ours["trajectories_per_second"] / ours["bound"]
    print(f"slots busy {ours['slots_busy']:.2f}; {share:.0%} of the learner's bound")


if __name__ == "__main__":
    main()
