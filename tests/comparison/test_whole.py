"""`offbeat compare` as a whole: real processes, all schedules, the page, and going on from what is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from offbeat.comparison.contestants import SCHEDULES
from offbeat.report.read import read_run
from tests.faults.conftest import SMALL, policy  # noqa: F401


def compare(out: Path, model: Path, *more: str) -> subprocess.CompletedProcess[str]:
    small = [each for each in SMALL if each != "run.evaluate_every=0"]  # a comparison sets that itself
    overrides = [part for each in (f"model.path={model}", *small) for part in ("--set", each)]
    command = [sys.executable, "-m", "offbeat.cli", "compare", "--out", str(out), "--json", *overrides, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=400)


def test_all_schedules_side_by_side_then_again_from_what_is_there(policy: Path, tmp_path: Path) -> None:  # noqa: F811
    out = tmp_path / "compare"
    done = compare(out, policy, "--iterations", "8", "--warmup", "2")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["schedules"]) == set(SCHEDULES)
    for name, row in found["schedules"].items():
        assert row["trajectories_per_second"] > 0
        assert row["evicted"] == 0
        parts = f"-{row['lanes_split_in']}-parts" if row["lanes_split_in"] > 1 else ""
        run = read_run(out / f"{name}{parts}-{row['threads']}-threads-repeat-0")
        assert run.settings.schedule.name == name
        assert run.settings.run.threads == row["threads"]
    assert Path(found["page"]).read_text(encoding="utf-8").count("data-figure=") >= 3 + len(SCHEDULES)
    again = compare(out, policy, "--iterations", "8", "--warmup", "2")
    assert json.loads(again.stdout) == found
    other = compare(out, policy, "--iterations", "9", "--warmup", "2")
    assert (other.returncode, len(other.stderr.strip().splitlines()[-1:])) == (2, 1)
    assert "holds a run with other settings" in other.stderr
