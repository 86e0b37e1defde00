"""A run whose learner is sharded over two processes: killed, taken up again, and taken over by one that is not."""

from __future__ import annotations

import signal

from offbeat.testing.subject import workers_of

from .conftest import Trial, finish, kill, noise
from .test_kills import assert_clean

N = 14


def test_a_sharded_run_goes_on_after_kills_and_with_another_number_of_processes(trial: Trial) -> None:
    process = trial.begin(
        *noise(trial), f"learner.iterations={N}", "learner.processes=2", "learner.sharding=fsdp2",
        "learner.align.mode=cap",
    )  # fmt: skip
    trial.wait_for_version(2, process)
    assert any((trial.directory / "versions").glob("*/shards/*.safetensors"))
    [learner] = workers_of(process.pid, "learner")
    [part] = learner.children()
    part.kill()
    trial.wait_for_version(trial.version() + 2, process)
    kill(process)
    arguments = "train", "--resume", str(trial.directory), "--json"
    process = trial.popen(*arguments)
    trial.wait_for_version(trial.version() + 2, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert trial.version() < N
    finish(trial.popen(*arguments, "--learner-processes", "1"))
    assert_clean(trial, N, recompute=20)
    newest = max((trial.directory / "versions").iterdir())
    assert not (newest / "shards").exists()
