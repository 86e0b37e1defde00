"""Whole runs on a Ray cluster of several nodes: the same results as here, and nothing lost whatever dies."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from offbeat import events as e
from tests.clusters import ON_CLUSTER, actors, node, worker_beside
from tests.twin.test_bound_zero import published

from .conftest import Trial, finish, kill, noise
from .test_kills import assert_clean

pytestmark = ON_CLUSTER

TAIL = (
    "learner.iterations=100000",
    "rollout.lanes=2",
    "rollout.max_new_tokens=60",
    "schedule.max_versions=1",
    "schedule.rebalance_seconds=0.5",
)


def on_ray(cluster: Any) -> tuple[str, ...]:
    return "run.backend=ray", f"ray.address={cluster.address}"


def said(trial: Trial, *kinds: type) -> list[Any]:
    """Events of these kinds, in order, from the log of a run that may be writing."""
    file = trial.directory / "run.sqlite"
    if not file.exists():
        return []
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as log, log:
        which = ", ".join(f"'{kind.__name__}'" for kind in kinds)
        rows = log.execute(f"SELECT body FROM events WHERE kind IN ({which}) ORDER BY seq").fetchall()
    return [msgspec.json.decode(body, type=e.Event) for (body,) in rows]


def test_the_tests_of_a_cluster_share_a_process(request: pytest.FixtureRequest) -> None:
    """Or each process of the session starts a cluster of its own, and they starve each other."""
    assert "PYTEST_XDIST_WORKER" not in os.environ or request.node.nodeid.endswith("@cluster")


def test_a_cluster_changes_no_result_and_neither_does_another_run_on_it(
    cluster: Any, policy: Path, tmp_path: Path
) -> None:
    """Bit for bit at K = 0: batches, losses, weights; of two runs at once that share nodes."""
    halves = "ray.lane_cpus=0.5", "ray.learner_cpus=0.5"
    alike = "schedule.max_staleness=0", "learner.iterations=20"  # so long that both are there, however late one begins
    with ThreadPoolExecutor() as both:
        there = [
            both.submit(published, tmp_path / each, policy, *alike, *on_ray(cluster), *halves)
            for each in ("one", "other")
        ]
        here = published(tmp_path / "here", policy, *alike)
    assert [each.result() for each in there] == [here, here]
    assert len({digest for digest, _, _ in here}) > 1
    began = [(tmp_path / each / "learner.lock").stat().st_mtime for each in ("one", "other")]
    ended = [(tmp_path / each / "versions/000020/manifest.json").stat().st_mtime for each in ("one", "other")]
    assert max(began) < min(ended), "their learners were not there at the same time"


def test_a_node_dies_then_a_lane_the_learner_and_the_driver(cluster: Any, trial: Trial) -> None:
    """Once a response has travelled between them. The node's lane waits for room, is not blamed, and comes back with
    another node."""
    process = trial.begin(*noise(trial), *TAIL, *on_ray(cluster))
    trial.wait_for(lambda: len(said(trial, e.LaneReady)) == 2, process)
    trial.wait_for_version(3, process)
    trial.wait_for(lambda: any(event.trajectory_ids for event in said(trial, e.Departed)), process)
    lost = cluster.list_all_nodes()[-1]
    os.kill(lost.all_processes["raylet"][0].process.pid, signal.SIGKILL)
    trial.wait_for(lambda: any(event.left for event in said(trial, e.LaneLost)), process)
    trial.wait_for_version(trial.version() + 2, process)
    cluster.remove_node(lost, allow_graceful=False)
    cluster.add_node(**node(1))
    trial.wait_for(lambda: len(said(trial, e.LaneReady)) == 3, process)
    workers = actors(cluster)
    [learner] = [p for p in workers if worker_beside(p)[0] == "learner"]
    [lane, *_] = [p for p in workers if p != learner]
    lane.kill()
    trial.wait_for(lambda: len(said(trial, e.LaneReady)) == 4, process)
    learner.kill()
    trial.wait_for(lambda: len(said(trial, e.LearnerReady)) == 2, process)
    trial.wait_for_version(trial.version() + 1, process)
    kill(process)
    process = trial.resume()
    trial.wait_for_version(trial.version() + 2, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    found = assert_clean(trial, trial.version(), recompute=20)
    assert found["max_logprob_error"] < 1e-4
    assert len(said(trial, e.LearnerLost)) == 1
    moved = [event for event in said(trial, e.Departed) if event.trajectory_ids]
    assert moved, "no response ever travelled between nodes"


def test_a_run_that_began_here_goes_on_there(cluster: Any, trial: Trial) -> None:
    process = trial.begin(*noise(trial), *TAIL, "learner.iterations=12")
    trial.wait_for_version(2, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    arguments = "--backend", "ray", "--address", cluster.address
    finish(trial.popen("train", "--resume", str(trial.directory), *arguments, "--json"))
    assert_clean(trial, 12)


def test_a_cluster_that_cannot_be_joined_is_one_line_and_nothing_is_written(trial: Trial) -> None:
    for address, words in (
        ("ray://10.0.0.1:10001", "ray job submit"),
        ("head", "not auto and not HOST:PORT"),
        ("127.0.0.1:1", "start Ray there"),
    ):
        done = subprocess.run(
            trial.command("train", "--out", str(trial.directory), "--backend", "ray", "--address", address),
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": trial.python_path},
        )
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert words in done.stderr
    assert not trial.directory.exists()


def test_nothing_of_a_ray_that_was_started_for_a_run_outlives_it(trial: Trial) -> None:
    """Also where the run is killed, and nobody gets in without the token."""
    process = trial.begin(*noise(trial), *TAIL, "run.backend=ray")
    trial.wait_for_version(1, process)
    found = [(name_of(child), child) for child in psutil.Process(process.pid).children(recursive=True)]
    assert any("raylet" in name for name, _ in found)
    kill(process)
    deadline = time.monotonic() + 30
    working = [child for name, child in found if "Agent" not in name]  # Ray's agents look for their raylet rarely
    while any(map(alive, working)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [child for child in working if alive(child)]


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return "gone"


def alive(process: psutil.Process) -> bool:
    try:
        return process.status() != "zombie"
    except psutil.NoSuchProcess:
        return False
