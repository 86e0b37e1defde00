"""Kill, stop and interrupt a real run at random moments: nothing is lost, nothing used twice, the bound holds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .conftest import Trial, finish, kill, noise, worker

N = 400
LONG = f"learner.iterations={N}"
"""Long enough that a run is still under way when it is hurt, on a fast machine too."""


def assert_clean(trial: Trial, iterations: int, recompute: int = 0) -> dict:
    found = trial.verify(recompute)
    zeros = ("c1_violations", "c2_lost", "c2_consumed_twice", "c3_violations")
    assert [found[key] for key in zeros] == [0, 0, 0, 0], found
    assert found["trajectories"] == 16 * iterations
    assert found["staleness"]["max"] <= found["staleness"]["bound"]
    return found


def test_kill_9_of_every_kind_of_process_then_resume(trial: Trial) -> None:
    rng = random.Random(os.urandom(8))
    process = trial.begin(*noise(trial), LONG)
    for kind in rng.sample(["rollout", "learner", "scorer"], 3):
        trial.wait_for_version(trial.version() + 1 if trial.version() > 0 else 2, process)
        time.sleep(rng.uniform(0, 0.5))
        worker(process, kind).kill()
    trial.wait_for_version(trial.version() + 1, process)
    time.sleep(rng.uniform(0, 0.5))
    kill(process)
    before = trial.version()
    assert before < N
    result = finish(trial.resume())
    assert (result["iterations"], result["lost"], result["consumed_twice"]) == (N, 0, 0)
    found = assert_clean(trial, N, recompute=20)
    assert found["recomputed"] > 0
    assert found["max_logprob_error"] < 1e-4


def test_kill_9_of_main_again_and_again(trial: Trial) -> None:
    """Also while a session is starting up: the moments are random, the sessions short."""
    rng = random.Random(os.urandom(8))
    process = trial.begin(*noise(trial), LONG)
    trial.wait_for_version(1, process)
    kill(process)
    for _ in range(3):
        process = trial.resume()
        time.sleep(rng.uniform(0.2, 6.0))
        kill(process)
    finish(trial.resume())
    assert_clean(trial, N)


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


def test_a_second_main_is_refused_while_the_first_runs(trial: Trial) -> None:
    process = trial.begin(*noise(trial), "learner.iterations=100000")
    trial.wait_for_version(1, process)
    second = trial.resume()
    _, err = second.communicate(timeout=60)
    assert second.returncode == 2, err
    assert "in use" in err
    kill(process)


def test_a_frozen_lane_is_replaced_when_its_leases_end(trial: Trial) -> None:
    process = trial.begin(*noise(trial), LONG, "run.lease_seconds=2.0")
    trial.wait_for_version(2, process)
    worker(process, "rollout").send_signal(signal.SIGSTOP)
    finish(process)
    assert_clean(trial, N)


def test_a_frozen_learner_fails_the_run_by_name_and_resumes(trial: Trial) -> None:
    process = trial.begin(*noise(trial), LONG, "run.stall_seconds=6.0")
    trial.wait_for_version(2, process)
    worker(process, "learner").send_signal(signal.SIGSTOP)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "no progress" in err
    assert "learner" in err
    finish(trial.resume())
    assert_clean(trial, N)


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
    subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
    process = trial.resume()
    trial.wait_for_version(done + 3, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    found = trial.verify()
    assert found["c2_lost"] == found["c2_consumed_twice"] == found["c1_violations"] == found["c3_violations"] == 0


@pytest.mark.parametrize("schedule", ["one-step-off", "partial", "in-flight"])
def test_other_schedules_lose_nothing_either(trial: Trial, schedule: str) -> None:
    """C2 under every schedule: a lane, the learner and the main process killed, then resumed."""
    process = trial.begin(*noise(trial), "learner.iterations=60", f"schedule.name={schedule}")
    for kind in ("rollout", "learner"):
        trial.wait_for_version(trial.version() + 3 if trial.version() > 0 else 3, process)
        worker(process, kind).kill()
    trial.wait_for_version(trial.version() + 2, process)
    kill(process)
    result = finish(trial.resume())
    assert (result["iterations"], result["lost"], result["consumed_twice"]) == (60, 0, 0)
    found = trial.verify(10)
    assert (found["c2_lost"], found["c2_consumed_twice"], found["trajectories"]) == (0, 0, 16 * 60)
    assert found["max_logprob_error"] is None or found["max_logprob_error"] < 1e-4
