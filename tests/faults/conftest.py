"""Whole runs in processes of their own, with a policy small enough to make them short, and ways to hurt them."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from offbeat.cli import app
from offbeat.testing.subject import launch, python_path, workers_of

SMALL = (
    "rollout.max_new_tokens=12",
    "rollout.context=160",
    "rollout.slots=16",
    "schedule.group_size=4",
    "schedule.train_batch_size=16",
    "task.held_out=8",
    "run.evaluate_every=0",
    "learner.learning_rate=0.001",
)


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained Hugging Face directory: its responses are noise of random length."""
    from offbeat.models.presets import Preset, build_model, write_policy

    directory = tmp_path_factory.mktemp("policy")
    write_policy(build_model(Preset(width=32, hidden=64, layers=1, heads=2, kv_heads=1), seed=0), directory)
    return directory


@dataclass
class Trial:
    """A run directory and the command lines that act on it."""

    directory: Path
    policy: Path
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "offbeat.cli", *arguments]

    def settings(self, *overrides: str) -> list[str]:
        given = (f"model.path={self.policy}", *SMALL, *overrides)
        return [part for override in given for part in ("--set", override)]

    def begin(self, *overrides: str, config: Path | None = None) -> subprocess.Popen[str]:
        configs = [str(config)] if config else []
        return self.popen("train", *configs, "--out", str(self.directory), "--json", *self.settings(*overrides))

    def resume(self) -> subprocess.Popen[str]:
        return self.popen("train", "--resume", str(self.directory), "--json")

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        return launch(arguments, self.environment)

    @property
    def python_path(self) -> str:
        return python_path(self.environment)

    def verify(self, recompute: int = 0) -> dict:
        return self.told("verify", "--recompute", str(recompute))

    def explain(self) -> dict:
        return self.told("explain")

    def told(self, command: str, *arguments: str) -> dict:
        """What a command that only reads says of this run; in this process, which has loaded what it needs."""
        done = CliRunner().invoke(app, [command, str(self.directory), "--json", *arguments])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def version(self) -> int:
        """Iterations committed so far, read from the log of a run that may be writing."""
        file = self.directory / "run.sqlite"
        if not file.exists():
            return -1
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db, db:
            return db.execute("SELECT count(*) FROM events WHERE kind = 'Trained'").fetchone()[0]

    def wait_for(self, what: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert process.poll() is None, f"ended too early: {process.communicate()}"
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)

    def wait_for_version(self, version: int, process: subprocess.Popen[str]) -> None:
        self.wait_for(lambda: self.version() >= version, process)


def finish(process: subprocess.Popen[str], seconds: float = 150.0) -> dict:
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err
    return json.loads(out)


def kill(process: subprocess.Popen[str]) -> None:
    """And wait for its workers, which the kernel ends a moment later."""
    workers = [worker for kind in ("rollout", "learner", "scorer") for worker in workers_of(process.pid, kind)]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    psutil.wait_procs(workers, timeout=20)


NOISE = """
import time


def reward(prompt, answer, response):
    time.sleep(0.004)
    return 1.0 if response == answer else len(set(response)) % 2 / 2
"""
"""A policy that answers at random gets unequal rewards, so every update moves its weights. Slow enough that a run does
not use up the processors while a test waits for something else."""


def write_task(folder: Path, prompts: list[str], reward: str) -> tuple[str, ...]:
    """Prompts and a reward of the user's own in `folder`, which must be on PYTHONPATH; the overrides that name them."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"prompt": text, "answer": "yes"}) for text in prompts]
    (folder / "data.jsonl").write_text("\n".join(lines))
    (folder / "my_rewards.py").write_text(reward)
    return (
        "task.name=jsonl",
        f"task.file={folder / 'data.jsonl'}",
        "task.reward=my_rewards:reward",
        "task.held_out=4",
        "task.reward_seconds=1.0",
    )


def noise(trial: Trial) -> tuple[str, ...]:
    """A task on which the untrained policy learns something at every step."""
    folder = trial.directory.parent / "noise"
    trial.environment = {"PYTHONPATH": str(folder)}
    return write_task(folder, [f"question {i}" for i in range(400)], NOISE)


@pytest.fixture
def trial(tmp_path: Path, policy: Path) -> Trial:
    return Trial(tmp_path / "run", policy)
