"""Whole runs with lanes on vLLM: what holds of the local engine's runs holds of these."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.faults.conftest import Trial, finish, kill

pytest.importorskip("plotly", reason="whole runs need offbeat's own environment: the second half of `make test-vllm`")


def events(run: Path, kind: str) -> int:
    with closing(sqlite3.connect(run / "run.sqlite")) as db:
        [[count]] = db.execute("SELECT COUNT(*) FROM events WHERE json_extract(body, '$.event') = ?", (kind,))
    return int(count)


def test_full_weights_survive_a_killed_lane_and_a_killed_main(trial: Trial) -> None:
    process = trial.begin("rollout.engine=vllm", "schedule.max_versions=1", "learner.iterations=100")
    trial.wait_for_version(2, process)
    lanes = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "rollout_process" in " ".join(child.cmdline())
    ]
    for lane in lanes:
        lane.kill()
    assert lanes
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


def test_versions_as_adapters_run_beside_each_other(trial: Trial) -> None:
    """Two versions and more in one engine at once, in the log of the run; every log-prob is its version's."""
    process = trial.begin(
        "rollout.engine=vllm", "learner.lora.rank=4", "learner.iterations=40", "schedule.max_staleness=2",
        "rollout.max_new_tokens=48",
    )  # fmt: skip
    result = finish(process)
    assert (result["iterations"], result["lost"], result["consumed_twice"]) == (40, 0, 0)
    assert most_versions_running_at_once(trial.directory) >= 2
    found = trial.verify(40)
    assert [found[key] for key in ("c1_violations", "c2_lost", "c2_consumed_twice", "c3_violations")] == [0, 0, 0, 0]
    assert found["recomputed"] > 0
    assert found["max_logprob_error"] < 1e-4
    assert (trial.directory / "model" / "model.safetensors").is_file()


def most_versions_running_at_once(run: Path) -> int:
    """Versions of the responses that were in slots at one moment, at most."""
    with closing(sqlite3.connect(run / "run.sqlite")) as db:
        rows = db.execute("SELECT body FROM events WHERE json_extract(body, '$.event') = 'Finished'").fetchall()
    spans = [json.loads(body) for [body] in rows]
    most = 0
    for at in spans:
        alive = {other["version"] for other in spans if other["started"] <= at["started"] < other["ended"]}
        most = max(most, len(alive))
    return most
