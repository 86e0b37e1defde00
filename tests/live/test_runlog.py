"""Commit rule: an event, its commands and its payload are in the log together or not at all."""

from __future__ import annotations

import gc
import sqlite3
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from offbeat import events as e
from offbeat.errors import RunDirectoryError, RunFailed
from offbeat.live.runlog import RunLog
from offbeat.records import Prompt, Span, Trajectory
from offbeat.testing.empty_report import EMPTY_REPORT

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


def test_reading_that_was_broken_off_may_be_forgotten_in_any_thread(tmp_path: Path) -> None:
    """By whichever looks for cycles of garbage: nothing was damaged. What is raised there fails this test."""
    log = RunLog.create(tmp_path / "run.sqlite", {})
    for _ in range(3):
        log.record(e.Tick(), 0.0, [])
    reading = [log.events()]
    next(reading[0])
    elsewhere = Thread(target=reading.clear)
    elsewhere.start()
    elsewhere.join()
    gc.collect()
    assert len(list(log.events())) == 3


def test_payload_without_its_event_is_not_kept(tmp_path: Path) -> None:
    log = RunLog.create(tmp_path / "run.sqlite", {})
    log.record(e.Tick(), 0.0, [])
    log.add_trajectory(trajectory(0))
    log.close()  # what a kill does: the open transaction is gone
    log = RunLog.open(tmp_path / "run.sqlite")
    with pytest.raises(RunDirectoryError, match="trajectory 0 is missing"):
        log.trajectory(0, 0)
    assert len(list(log.events())) == 1


def stored(log: RunLog) -> list[int]:
    """Trajectories that another process sees in the log: those that are committed."""
    with closing(sqlite3.connect(log.file)) as other, other:
        return [row[0] for row in other.execute("SELECT trajectory_id FROM trajectories")]


def test_payload_comes_with_its_own_event_and_not_with_an_earlier_one(tmp_path: Path) -> None:
    """Two responses arrive in one message; the log is asked about the first while the second still waits."""
    log = RunLog.create(tmp_path / "run.sqlite", {})
    for i in range(2):
        log.add_trajectory(trajectory(i))
    assert stored(log) == []
    log.record(e.Tick(), 0.5, [])
    assert stored(log) == []
    log.record(finished(0), 1.0, [])
    assert stored(log) == [0]
    log.record(finished(1), 1.1, [])
    assert stored(log) == [0, 1]
    assert log.trajectory(0, 0)[1] is None
    log.record(e.Scored(0, 0, 0.5), 1.2, [])
    assert log.trajectory(0, 0)[1] == 0.5


def test_a_publish_is_synced_with_all_before_it(tmp_path: Path) -> None:
    """A prompt that waits for the next event does not keep the setting from changing, nor stay it changed."""
    log = RunLog.create(tmp_path / "run.sqlite", {})
    levels: list[int] = []

    def note(statement: str) -> None:
        if statement.startswith("INSERT INTO events"):
            log._db.set_trace_callback(None)
            levels.extend(log._db.execute("PRAGMA synchronous").fetchone())
            log._db.set_trace_callback(note)

    log._db.set_trace_callback(note)
    for event in (e.Tick(), e.Trained(1, "digest", EMPTY_REPORT, 0.0, 1.0), e.Tick()):
        log.add_prompt(len(levels), PROMPT)
        log.record(event, 0.0, [])
    assert levels == [1, 2, 1]  # NORMAL, FULL, NORMAL
    log.close()
    again = RunLog.open(tmp_path / "run.sqlite")
    assert len(list(again.events())) == 3
    assert again.prompt(1) == PROMPT


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


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("DROP TABLE events", "no such table"),
        ('UPDATE events SET body = \'{"event": "Foretold"}\'', "Foretold"),
        ("UPDATE events SET commands = '[{}]'", "Tick in run.sqlite cannot be read"),
        ("UPDATE events SET commands = 'half a li'", "Tick in run.sqlite cannot be read"),
        ("DROP TABLE trajectories", "no such table"),
        ("UPDATE trajectories SET record = x'ff'", "trajectory 0 in run.sqlite cannot be read"),
        ("UPDATE prompts SET token_ids = x'ff'", "prompt in run.sqlite cannot be read"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, damage: str, words: str) -> None:
    log = RunLog.create(tmp_path / "run.sqlite", {"offbeat_version": "9.9"})
    log.add_prompt(0, PROMPT)
    log.record(e.Tick(), 0.0, [])
    log.add_trajectory(trajectory(0))
    log.record(finished(0), 0.0, [])
    log._db.execute(damage)
    log.close()
    log = RunLog.open(tmp_path / "run.sqlite")
    with pytest.raises(RunDirectoryError, match=words) as caught:
        [*log.events(), log.trajectory(0, 0), log.prompt(0)]
    assert "\n" not in str(caught.value)
    assert "from a copy" in str(caught.value)
