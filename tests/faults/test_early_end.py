"""Ended before it has begun, a run says so in one line, with the exit code of an interruption, and leaves nothing."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from offbeat.errors import SettingsError
from offbeat.settings import settings_from
from tests.clusters import ON_CLUSTER

from .conftest import Trial


@pytest.mark.parametrize(("how", "seconds"), [(signal.SIGTERM, 0.0), (signal.SIGTERM, 2.5), (signal.SIGINT, 0.5)])
def test_a_run_that_is_being_prepared_ends_in_order(trial: Trial, how: signal.Signals, seconds: float) -> None:
    process = trial.begin("learner.iterations=1000000")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("task: ")
    time.sleep(seconds)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert any(line.startswith("offbeat: ") for line in err.splitlines()[-2:]), err
    left = [path.name for path in trial.directory.parent.iterdir() if path.name.startswith(".offbeat-preparing")]
    assert not left


@ON_CLUSTER
def test_ray_takes_nothing_of_that_away(trial: Trial, cluster: Any) -> None:
    """It puts a handler of its own in place when it is joined."""
    process = trial.begin("learner.iterations=1000000", "run.backend=ray", f"ray.address={cluster.address}")
    trial.wait_for(lambda: (trial.directory / "run.sqlite").exists(), process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines()[-1].startswith("offbeat: "), err
    assert trial.verify()["c2_lost"] == 0


def test_gpus_that_are_not_there_are_refused() -> None:
    ray_cluster = pytest.importorskip("offbeat.backends.ray_cluster", reason="Ray is not installed")
    wanted = settings_from({"rollout": {"lanes": 2}, "ray": {"lane_gpus": 0.5}})
    ray_cluster._check_gpus(wanted, 1.0)
    with pytest.raises(SettingsError, match=r"ray.lane_gpus = 0.5: lanes reserve 1 GPUs, this machine has 0; lower it"):
        ray_cluster._check_gpus(wanted, 0.0)
