"""Workers end whole, with all they started, and their last words are heard."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from offbeat.backends import messages as m
from offbeat.backends.local import Died, LocalBackend, Name
from offbeat.records import Prompt
from offbeat.settings import load_settings

SCORER = Name("scorer")
REWARD = """
import multiprocessing, os, subprocess, sys, time
from pathlib import Path

def sleep():
    time.sleep(600)

def reward(prompt, answer, response):
    forked = multiprocessing.get_context("fork").Process(target=sleep)
    forked.start()
    spawned = subprocess.Popen(["sleep", "600"])
    Path(response).write_text(f"{forked.pid} {spawned.pid}")
    if prompt == "die":
        os._exit(3)
    time.sleep(600)
"""


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[LocalBackend]:
    backend = LocalBackend(tmp_path / "workers.log", 1)
    yield backend
    backend.close()


def hello(folder: Path, monkeypatch: pytest.MonkeyPatch) -> m.ScorerHello:
    """A scorer with a reward that starts processes of its own."""
    (folder / "breeding_rewards.py").write_text(REWARD)
    (folder / "data.jsonl").write_text("\n".join(json.dumps({"prompt": f"q{i}", "answer": "yes"}) for i in range(4)))
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    task = ("task.name=jsonl", f"task.file={folder / 'data.jsonl'}", "task.reward=breeding_rewards:reward")
    return m.ScorerHello(load_settings(None, [*task, "task.held_out=1"]).model_dump(mode="json"))


def hear(backend: LocalBackend, kind: type, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for _, message in backend.poll(0.1):
            if isinstance(message, kind):
                return message
    raise AssertionError(f"no {kind.__name__}")


def soon(what: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not what() and time.monotonic() < deadline:
        time.sleep(0.02)
    return what()


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_with_a_worker_ends_all_that_it_started_and_foreign_code_keeps_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    backend = LocalBackend(tmp_path / "workers.log", 1, keep_open=(lock,))
    born = tmp_path / "born"
    backend.start(SCORER, hello(tmp_path, monkeypatch))
    hear(backend, m.ScorerUp)
    backend.send(SCORER, m.ScoreThis(1, Prompt(0, "d", "hang", "yes"), str(born)))
    assert soon(lambda: born.exists() and len(born.read_text().split()) == 2)
    children = [int(pid) for pid in born.read_text().split()]
    assert not any(gone(pid) for pid in children)
    os.close(lock)  # as the end of the main process does
    again = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(again)
    backend.close()
    assert all(soon(lambda pid=pid: gone(pid)) for pid in children)


def test_a_worker_that_dies_beside_its_living_children_is_noticed_and_they_end(
    tmp_path: Path, backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forked child has the worker's channel, too; were it left open, nobody would hear that the worker is gone."""
    born = tmp_path / "born"
    backend.start(SCORER, hello(tmp_path, monkeypatch))
    hear(backend, m.ScorerUp)
    backend.send(SCORER, m.ScoreThis(1, Prompt(0, "d", "die", "yes"), str(born)))
    assert "exit code 3" in hear(backend, Died).reason
    assert SCORER not in backend.workers
    assert all(soon(lambda pid=pid: gone(int(pid))) for pid in born.read_text().split())


def test_a_worker_that_cannot_start_says_why(tmp_path: Path, backend: LocalBackend) -> None:
    task = ("task.name=jsonl", f"task.file={tmp_path / 'nothing.jsonl'}")
    backend.start(SCORER, m.ScorerHello(load_settings(None, list(task)).model_dump(mode="json")))
    backend.send(SCORER, m.ScoreThis(1, Prompt(0, "d", "q", "yes"), "x"))
    assert "no such file" in hear(backend, Died).reason


def test_a_killed_worker_is_told_from_one_that_ended(tmp_path: Path, backend: LocalBackend) -> None:
    backend.start(SCORER, m.ScorerHello(load_settings(None, []).model_dump(mode="json")))
    hear(backend, m.ScorerUp)
    backend.workers[SCORER].process.kill()
    assert hear(backend, Died).reason == "the scorer process ended by signal SIGKILL"
