"""Claims: the default run raises held-out exact match by at least 0.30, and its audit is clean; half law: what
`offbeat simulate --calibrate` fits to its first half predicts the second half's trajectories/s within 10 %. Beside
that error (*half*): what it were had the policy's later lengths and rewards been known (*known*), and how much longer
the machine took for the same training (*pace*).

Runs `offbeat train` with the built-in default for several seeds, one after the other, audits each with
`offbeat verify --recompute 100`, and prints one row a seed and the medians.

    python runs/default_gain.py --seeds 5 --out out/default_gain
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

KEYS = ("exact_match_before", "exact_match_after", "exact_match_sampled_before", "exact_match_sampled_after")


def offbeat(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "offbeat.cli", *arguments], stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, default=Path("out/default_gain"))
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    given = parser.parse_args()
    overrides = [part for override in given.overrides for part in ("--set", override)]
    rows = []
    print(
        "seed  greedy before -> after   sampled before -> after   traj/s  tokens/s  run s  whole s  violations  error"
        "    half   known  pace"
    )
    for seed in range(given.first, given.first + given.seeds):
        directory = given.out / f"seed-{seed}"
        began = time.monotonic()
        result = offbeat("train", "--out", str(directory), "--json", "--set", f"run.seed={seed}", *overrides)
        whole = time.monotonic() - began
        found = offbeat("verify", str(directory), "--json", "--recompute", "100")
        violations = sum(int(found[k]) for k in ("c1_violations", "c2_lost", "c2_consumed_twice", "c3_violations"))
        fitted = offbeat("simulate", "--calibrate", str(directory), "--schedules", "multi-version", "--json")
        half, known, pace = (fitted["calibration"][k] for k in ("error", "error_knowing_the_policy", "same_work"))
        a, b, c, d = (float(result[key]) for key in KEYS)
        rows.append((b - a, d - c, float(result["trajectories_per_second"]), whole))
        print(
            f"{seed:4}  {a:.3f} -> {b:.3f} ({b - a:+.3f})   {c:.3f} -> {d:.3f} ({d - c:+.3f})"
            f"   {rows[-1][2]:6.0f}  {result['tokens_per_second']:8.0f}  {result['wall_seconds']:5.0f}  {whole:7.0f}"
            f"  {violations:10}  {found['max_logprob_error']:.1e}  {half:+.1%}  {known:+.1%}  {pace:.2f}",
            flush=True,
        )
    names = ("greedy gain", "sampled gain", "trajectories/s", "whole seconds")
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        print(f"{name}: median {statistics.median(values):.3f}, least {min(values):.3f}, most {max(values):.3f}")


if __name__ == "__main__":
    main()
