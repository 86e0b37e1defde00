"""Commit rule: an event, its commands and its payload are in the log together or not at all."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from offbeat import events as e
from offbeat.errors import RunDirectoryError, RunFailed
from offbeat.live.runlog import RunLog
from offbeat.records import Prompt, Span, Trajectory

PROMPT = Prompt(0, "sums", "1+2=", "3", (5, 6, 7))


def trajectory(trajectory_id: int, attempt: int = 0) -> Trajectory:
    return Trajectory(trajectory_id, attempt, (Span(0, (1, 2), (-0.1, -0.2)),), "stop", "3")


def finished(trajectory_id: int) -> e.Finished:
    return e.Finished(trajectory_id, 0, 0, 0, 0, 2, "stop", 0.0, 1.0)


def test_round_trip(tmp_path: Path) -> None:
    log = RunLog.create(tmp_path / "run.sqlite", {"a": "b"})
    log.add_prompt(0, PROMPT)
    for i in range(2):
        log.add_trajectory(trajectory(i))
        log.record(finished(i), 1.5, [e.Score(i, 0, 0, 0)])
        log.set_reward(i, 0, float(i))
        log.record(e.Scored(i, 0, float(i)), 1.6, [])
    log.close()
    log = RunLog.open(tmp_path / "run.sqlite")
    rows = list(log.events())
    assert [seq for seq, *_ in rows] == [1, 2, 3, 4]
    assert rows[0][1:] == (1.5, finished(0), [e.Score(0, 0, 0, 0)])
    batch = log.batch(0, [0], [[0, 0]])
    assert batch.groups[0].rewards == (0.0, 1.0)
    assert batch.groups[0].prompt == PROMPT
    assert batch.groups[0].trajectories == (trajectory(0), trajectory(1))
    assert log.meta("a") == "b"


def test_payload_without_its_event_is_not_kept(tmp_path: Path) -> None:
    log = RunLog.create(tmp_path / "run.sqlite", {})
    log.record(e.Tick(), 0.0, [])
    log.add_trajectory(trajectory(0))
    log.close()  # what a kill does: the open transaction is gone
    log = RunLog.open(tmp_path / "run.sqlite")
    with pytest.raises(RunDirectoryError, match="trajectory 0 is missing"):
        log.trajectory(0, 0)
    assert len(list(log.events())) == 1


def test_a_missing_reward_is_an_error_and_never_a_zero(tmp_path: Path) -> None:
    log = RunLog.create(tmp_path / "run.sqlite", {})
    log.add_prompt(0, PROMPT)
    log.add_trajectory(trajectory(0))
    log.record(finished(0), 0.0, [])
    with pytest.raises(RunDirectoryError, match="reward of group 0"):
        log.batch(0, [0], [[0]])


def test_a_full_disk_is_one_line_and_the_log_stays_whole(tmp_path: Path) -> None:
    log = RunLog.create(tmp_path / "run.sqlite", {})
    log.record(e.Tick(), 0.0, [])
    pages = log._db.execute("PRAGMA page_count").fetchone()[0]
    log._db.execute(f"PRAGMA max_page_count={pages}")

    def fill() -> None:
        for i in range(1000):
            log.record(e.WorldFailed("x" * 1000), float(i), [])

    with pytest.raises(RunFailed, match="make room"):
        fill()
    log.close()
    again = RunLog.open(tmp_path / "run.sqlite")
    assert again._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    assert len(list(again.events())) >= 1
    again.record(e.Tick(), 1.0, [])


def test_what_is_not_a_run_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no"):
        RunLog.open(tmp_path / "run.sqlite")
    (tmp_path / "text.sqlite").write_text("not a database, but long enough to be taken for one" * 10)
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        RunLog.open(tmp_path / "text.sqlite")
    db = sqlite3.connect(tmp_path / "old.sqlite")
    db.execute("CREATE TABLE meta(key, value)")
    db.execute("INSERT INTO meta VALUES('schema', '0')")
    db.commit()
    with pytest.raises(RunDirectoryError, match="schema 0"):
        RunLog.open(tmp_path / "old.sqlite")
