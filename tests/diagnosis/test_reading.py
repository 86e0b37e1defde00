"""Cases are read from real run directories: whole, in use, damaged, and none at all; in JSON and in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from offbeat.diagnosis.explain import explain
from offbeat.diagnosis.reading import read_case
from offbeat.errors import RunDirectoryError
from offbeat.locks import hold
from tests.live.conftest import interrupted_run, policy
from tests.report.scheduled_run import write_scheduled_run

__all__ = ["policy"]


def names(directory: Path) -> set[str]:
    return {finding.name for finding in explain(read_case(directory)).findings}


def test_a_run_in_use_is_running_and_one_that_is_not_has_crashed(tmp_path: Path) -> None:
    run = write_scheduled_run(tmp_path / "run", most_events=300)
    assert "crashed" in names(run)
    held = hold(run / "lock", "run")
    assert read_case(run).state == "running"
    assert "crashed" not in names(run)
    os.utime(run / "run.sqlite", (0, 0))
    for beside in run.glob("run.sqlite-*"):
        os.utime(beside, (0, 0))
    assert "main-silent" in names(run)
    os.close(held)


def test_last_words_are_the_last_line_that_says_something(tmp_path: Path) -> None:
    run = write_scheduled_run(tmp_path / "run", most_events=300)
    (run / "workers.log").write_text("Traceback\n" + "x" * 9000 + "\nMemoryError: all gone\n\n \n")
    assert read_case(run).place.last_words == "MemoryError: all gone"


def test_of_a_damaged_log_the_part_before_the_damage_is_told(tmp_path: Path) -> None:
    run = write_scheduled_run(tmp_path / "run", kills=1)
    whole = read_case(run)
    assert whole.place.log_damage == ""
    for beside in run.glob("run.sqlite-*"):
        beside.unlink()
    with open(run / "run.sqlite", "r+b") as log:
        log.seek(log.seek(0, os.SEEK_END) // 2)
        log.write(b"\xff" * 8192)
    damaged = read_case(run)
    assert damaged.place.log_damage
    assert damaged.run.records == whole.run.records[: len(damaged.run.records)]
    assert "log-damaged" in names(run)


def test_a_damaged_newest_version_is_told_before_a_resume_meets_it(tmp_path: Path, policy: Path) -> None:
    run = interrupted_run(tmp_path / "run", policy)
    assert "checkpoint-damaged" not in names(run)
    (run / "versions" / "000002" / "optimizer.safetensors").write_bytes(b"nonsense")
    assert "checkpoint-damaged" in names(run)
    held = hold(run / "lock", "run")
    assert "checkpoint-damaged" not in names(run), "a run that lives may be writing it"
    os.close(held)


def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "run.sqlite").write_bytes(b"not a database at all, but long enough to be looked at")
    with pytest.raises(RunDirectoryError, match="cannot be read") as caught:
        read_case(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_command_prints_one_object_or_words(tmp_path: Path) -> None:
    run = write_scheduled_run(tmp_path / "run", most_events=300)
    before = sorted(path.name for path in run.iterdir())
    command = [sys.executable, "-m", "offbeat.cli", "explain", str(run)]
    told = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    assert (told["state"], told["healthy"]) == ("crashed", False)
    [crashed] = [finding for finding in told["findings"] if finding["name"] == "crashed"]
    assert set(crashed) == {"name", "severity", "sentence", "remedy", "evidence"}
    words = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"-> go on with: offbeat train --resume {run}" in words
    assert [p.name for p in run.iterdir() if not p.name.startswith("run.sqlite")] == [
        name for name in before if not name.startswith("run.sqlite")
    ]
