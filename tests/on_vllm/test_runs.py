"""Whole runs with lanes on vLLM: what holds of the local engine's runs holds of these."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.conftest import Trial, finish, kill, worker

pytestmark = pytest.mark.slow


def events(run: Path, kind: str) -> int:
    with closing(sqlite3.connect(run / "run.sqlite")) as db:
        [[count]] = db.execute("SELECT COUNT(*) FROM events WHERE json_extract(body, '$.event') = ?", (kind,))
    return int(count)


def test_full_weights_survive_a_killed_lane_and_a_killed_main(trial: Trial) -> None:
    process = trial.begin("rollout.engine=vllm", "schedule.max_versions=1", "learner.iterations=100")
    trial.wait_for_version(2, process)
    worker(process, "rollout").kill()
    trial.wait_for_version(trial.version() + 2, process)
    kill(process)
    before = trial.version()
    assert before < 100
    result = finish(trial.resume())
    assert (result["iterations"], result["lost"], result["consumed_twice"]) == (100, 0, 0)
    assert events(trial.directory, "LaneLost") >= 1
    found = trial.verify(20)
    assert [found[key] for key in ("c1_violations", "c2_lost", "c2_consumed_twice", "c3_violations")] == [0, 0, 0, 0]
    assert found["recomputed"] > 0
    assert found["max_logprob_error"] < 1e-4
