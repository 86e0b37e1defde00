"""Claim: every objective trains live at staleness 2, on the default task, with finite numbers and a clean audit.

One short run each through `offbeat train`, then `offbeat verify`; two updates an iteration, so that proximal and target
differ. This shows that they run, not that they learn.

    python runs/objectives_live.py --iterations 6 --out out/objectives
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from offbeat import events as e
from offbeat.objectives import NAMES
from offbeat.report.read import read_run

SMALL = (
    "schedule.train_batch_size=32", "schedule.max_staleness=2", "learner.updates_per_iteration=2",
    "run.evaluate_every=0",
)  # fmt: skip


def offbeat(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "offbeat.cli", *arguments, "--json"], capture_output=True, text=True)
    if not done.stdout:
        raise SystemExit(f"offbeat {' '.join(arguments)}: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def numbers(value: object) -> list[float]:
    """Every number in a report, however deep."""
    if isinstance(value, int | float):
        return [float(value)]
    if isinstance(value, dict):
        return [number for each in value.values() for number in numbers(each)]
    return [number for each in value for number in numbers(each)] if isinstance(value, list | tuple) else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--objectives", default=",".join(NAMES))
    parser.add_argument("--out", type=Path, default=Path("out/objectives"))
    given = parser.parse_args()
    import msgspec

    print(f"{'objective':14} loss (first, last)       gradient  clipped  ESS    stale  finite verify")
    failed = False
    for name in given.objectives.split(","):
        run = given.out / name
        overrides = (*SMALL, f"learner.objective={name}", f"learner.iterations={given.iterations}")
        if not (run / "run.sqlite").is_file():
            offbeat("train", "--out", str(run), *(part for each in overrides for part in ("--set", each)))
        audit = offbeat("verify", str(run))
        reports = [record.event.report for record in read_run(run).records if isinstance(record.event, e.Trained)]
        finite = all(math.isfinite(number) for report in reports for number in numbers(msgspec.to_builtins(report)))
        skipped = sum(report.skipped_updates for report in reports)
        clean = not any(audit[key] for key in ("c1_violations", "c2_lost", "c2_consumed_twice", "c3_violations"))
        last = reports[-1]
        assert last.instruments is not None
        good = finite and clean and not skipped and len(reports) == given.iterations
        failed = failed or not good
        print(
            f"{name:14} {reports[0].loss:+.3e}, {last.loss:+.3e}  {last.gradient_norm:8.3f} {last.clip_share:8.2%}"
            f" {last.instruments.effective_sample_size:6.3f} {audit['staleness']['max']:5}  {finite!s:6} "
            f"{'clean' if clean else 'NOT CLEAN'}{f', {skipped} skipped' if skipped else ''}"
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
