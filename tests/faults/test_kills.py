"""Runs that end before their goal, by the user's hand or for want of room, and go on. Kills: test_drill.py."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from .conftest import Trial, finish, noise

N = 60
LONG = f"learner.iterations={N}"
"""Long enough that a run is still under way when it is interrupted, on a fast machine too."""


def assert_clean(trial: Trial, iterations: int, recompute: int = 0) -> dict:
    found = trial.verify(recompute)
    zeros = ("c1_violations", "c2_lost", "c2_consumed_twice", "c3_violations")
    assert [found[key] for key in zeros] == [0, 0, 0, 0], found
    assert found["trajectories"] == 16 * iterations
    assert found["staleness"]["max"] <= found["staleness"]["bound"]
    return found


def test_ctrl_c_is_exit_130_and_resumes(trial: Trial) -> None:
    process = trial.begin(*noise(trial), LONG)
    trial.wait_for_version(2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"--resume {trial.directory}" in err
    finish(trial.resume())
    assert_clean(trial, N)
    again = finish(trial.resume())
    assert again["iterations"] == N


@pytest.fixture
def small_disk(tmp_path: Path):
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)], capture_output=True)
    if made.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_full_disk_is_one_line_and_resumes_once_there_is_room(small_disk: Path, policy: Path) -> None:
    trial = Trial(small_disk / "run", policy)
    process = trial.begin(*noise(trial), "learner.iterations=200", "run.keep_versions=30")
    _, err = process.communicate(timeout=150)
    assert process.returncode == 1, err
    assert "Traceback" not in err
    complaints = [line for line in err.splitlines() if line.startswith("offbeat:")]
    assert len(complaints) == 1, err
    assert any(words in complaints[0] for words in ("No space left", "disk is full", "make room")), complaints
    done = trial.version()
    assert 0 < done < 200
    assert "disk-full" in {finding["name"] for finding in trial.explain()["findings"]}
    subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
    process = trial.resume()
    trial.wait_for_version(done + 3, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    found = trial.verify()
    assert found["c2_lost"] == found["c2_consumed_twice"] == found["c1_violations"] == found["c3_violations"] == 0
