"""Ended before it has begun, a run says so in one line, with the exit code of an interruption, and leaves nothing."""

from __future__ import annotations

import signal
import time

import pytest

from .conftest import Trial


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("seconds", [1.5, 4.0])
def test_a_run_that_is_being_prepared_ends_in_order(trial: Trial, how: signal.Signals, seconds: float) -> None:
    process = trial.begin("learner.iterations=1000000")
    time.sleep(seconds)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert any(line.startswith("offbeat: ") for line in err.splitlines()[-2:]), err
    left = [path.name for path in trial.directory.parent.iterdir() if path.name.startswith(".offbeat-preparing")]
    assert not left


def test_ray_takes_nothing_of_that_away(trial: Trial) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'offbeat[ray]'")
    process = trial.begin("learner.iterations=1000000", "run.backend=ray")
    trial.wait_for(lambda: (trial.directory / "run.sqlite").exists(), process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines()[-1].startswith("offbeat: "), err
    assert trial.verify()["c2_lost"] == 0


def test_gpus_that_are_not_there_are_refused_at_once(trial: Trial) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'offbeat[ray]'")
    process = trial.begin("learner.iterations=1", "run.backend=ray", "ray.lane_gpus=999")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "ray.lane_gpus = 999: lanes reserve 999 GPUs, this machine has 0; lower it" in err
    assert not trial.directory.exists()
