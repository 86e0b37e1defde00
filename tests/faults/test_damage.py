"""A run whose newest version was damaged while it slept falls back to the one before; other damage is refused in one
line that says what and what to do (each kind of it: tests/live/test_rundir.py)."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from offbeat.events import Event, Rebuilt, Trained

from .conftest import Trial, finish, kill, noise


def spoil(file: Path) -> None:
    """Overwrite some bytes with noise; the size stays."""
    content = bytearray(file.read_bytes())
    content[-4000:-3900] = random.Random(0).randbytes(100)
    file.write_bytes(content)


def versions(run: Path) -> list[Path]:
    return sorted(path for path in (run / "versions").iterdir() if path.name.isdigit())


def events(trial: Trial, *kinds: str) -> list[Event]:
    marks = ",".join("?" * len(kinds))
    with closing(sqlite3.connect(trial.directory / "run.sqlite")) as db, db:
        rows = db.execute(f"SELECT body FROM events WHERE kind IN ({marks}) ORDER BY seq", kinds).fetchall()
    return [msgspec.json.decode(body, type=Event) for (body,) in rows]


def test_a_damaged_newest_version_is_made_anew_from_the_one_before_it(trial: Trial, tmp_path: Path) -> None:
    process = trial.begin(*noise(trial), "learner.iterations=40")
    trial.wait_for_version(6, process)
    kill(process)
    *_, before, newest = versions(trial.directory)
    committed = len(events(trial, "Trained"))  # as who may write sees it: a killed writer's last commit included
    unlogged = int(newest.name) > committed
    before, newest = (versions(trial.directory)[-3], before) if unlogged else (before, newest)
    hopeless = tmp_path / "hopeless"
    spoil(newest / "model.safetensors")
    shutil.copytree(trial.directory, hopeless)
    spoil(hopeless / "versions" / before.name / "optimizer.safetensors")

    result = finish(trial.resume())
    assert (result["iterations"], result["lost"], result["consumed_twice"]) == (40, 0, 0)
    [rebuilt] = events(trial, "Rebuilt")
    assert isinstance(rebuilt, Rebuilt)
    announced = {event.version: event.digest for event in events(trial, "Trained") if isinstance(event, Trained)}
    assert (rebuilt.version, rebuilt.digest) == (committed, announced[committed]), "not what it was, bit for bit"
    found = trial.verify(60)
    assert found["max_logprob_error"] < 1e-4

    trial.directory = hopeless
    refused = trial.resume()
    _, err = refused.communicate(timeout=60)
    assert (refused.returncode, len(err.strip().splitlines())) == (2, 1), err
    for words in (f"version {committed}", "before it is no better", "from a copy"):
        assert words in err
