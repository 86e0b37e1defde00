"""Runs small enough to be made in a moment, and workers that say what a test puts into their mouths."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from offbeat import events as e
from offbeat.backends.local import Name
from offbeat.backends.weights import Canary, publish
from offbeat.flow.plan import plan_from
from offbeat.flow.scheduler import Scheduler
from offbeat.live.runlog import RunLog
from offbeat.loop import run
from offbeat.settings import Settings, load_settings
from offbeat.testing.fake_world import FakeWorld

SMALL = (
    "schedule.group_size=2",
    "schedule.train_batch_size=4",
    "learner.iterations=2",
    "run.evaluate_every=0",
    "run.lease_seconds=1000",
    "run.stall_seconds=5000",
    "rollout.context=64",
    "rollout.max_new_tokens=8",
    "task.held_out=2",
)


class Puppets:
    """backends.local.LocalBackend without processes: `said` is what the next poll hears."""

    def __init__(self) -> None:
        self.workers: dict[Name, Any] = {}
        self.started: list[Name] = []
        self.sent: list[tuple[Name, Any]] = []
        self.said: list[tuple[Name, Any]] = []

    def start(self, name: Name, hello: Any) -> None:
        self.workers[name] = hello
        self.started.append(name)
        self.said = [(other, message) for other, message in self.said if other != name]

    def send(self, name: Name, message: Any) -> None:
        self.sent.append((name, message))

    def poll(self, seconds: float) -> list[tuple[Name, Any]]:
        said, self.said = self.said, []
        return said

    def end(self, name: Name) -> None:
        self.workers.pop(name, None)

    def wake(self) -> None:
        pass

    def close(self) -> None:
        self.workers.clear()


@pytest.fixture
def puppets() -> Puppets:
    return Puppets()


def settings(*overrides: str) -> Settings:
    return load_settings(None, [*SMALL, *overrides])


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    from offbeat.models.presets import Preset, build_model, write_policy

    write_policy(build_model(Preset(width=8, hidden=8, layers=1, heads=1, kv_heads=1), seed=0), tmp_path / "policy")
    return tmp_path / "policy"


def finished_run(directory: Path, policy: Path) -> Path:
    """A run directory as it is when the run has just said that it finished: no model/ yet."""
    return _run(directory, policy, settings(), "finished")


def interrupted_run(directory: Path, policy: Path) -> Path:
    """A run directory to go on with, two iterations done."""
    return _run(directory, policy, settings("learner.iterations=1000"), "failed")


class _TwoIterations(FakeWorld):
    def next_event(self) -> e.Event:
        return e.WorldFailed("enough") if self.version == 2 else super().next_event()


def _run(directory: Path, policy: Path, chosen: Settings, outcome: str) -> Path:
    """Written by the real scheduler and the real learner, but for what happened between."""
    from offbeat.learner.step import PolicyLearner

    directory.mkdir()
    policy.rename(directory / "policy")
    log = RunLog.create(
        directory / "run.sqlite", {"settings": chosen.model_dump_json(), "offbeat_version": "0", "digest_0": ""}
    )
    world = FakeWorld(1, 1, 8) if outcome == "finished" else _TwoIterations(1, 1, 8)
    scheduler = Scheduler(plan_from(chosen))
    assert run(world, scheduler, log).outcome == outcome
    log.close()
    learner = PolicyLearner.open(directory / "policy", chosen)
    canary = Canary((3,), (4,), (-1.0,))
    for version in sorted(scheduler.live_versions):
        learner.version = version
        digest = publish(directory, version, learner.publish, lambda: canary).digest
        with closing(sqlite3.connect(directory / "run.sqlite", isolation_level=None)) as db:
            db.execute(
                "UPDATE events SET body = json_set(body, '$.digest', ?) WHERE kind = 'Trained'"
                " AND json_extract(body, '$.version') = ?",
                (digest, version),
            )
            if version == 0:
                db.execute("UPDATE meta SET value = ? WHERE key = 'digest_0'", (digest,))
    return directory
