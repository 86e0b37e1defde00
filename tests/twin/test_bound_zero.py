"""Multi-version with K = 0 is sync in whole runs, bit for bit: the same batches, losses and weights.

Which requests share a decode step depends on when messages arrive; what a request samples does not depend on it.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.faults.conftest import Trial, finish, noise, policy  # noqa: F401


def published(directory: Path, model: Path, *schedule: str) -> list[tuple[str, float, list[int]]]:
    """(digest, loss, groups) of every iteration."""
    trial = Trial(directory, model)
    finish(trial.begin(*noise(trial), "learner.iterations=6", "rollout.slots=64", *schedule))
    with closing(sqlite3.connect(directory / "run.sqlite")) as db, db:
        rows = db.execute("SELECT body, commands FROM events ORDER BY seq").fetchall()
    trained = [event for event in (json.loads(body) for body, _ in rows) if event["event"] == "Trained"]
    taken = [c["group_ids"] for _, commands in rows for c in json.loads(commands) if c["command"] == "Train"]
    return [(t["digest"], t["report"]["loss"], groups) for t, groups in zip(trained, taken, strict=True)]


def test_bound_zero_is_sync(policy: Path, tmp_path: Path) -> None:  # noqa: F811
    sync = published(tmp_path / "sync", policy, "schedule.name=sync")
    streaming = published(tmp_path / "streaming", policy, "schedule.max_staleness=0")
    assert streaming == sync
    assert len({digest for digest, _, _ in sync}) > 1, "nothing was learned: the law would hold for any schedule"
