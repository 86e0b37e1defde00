"""The run log: one SQLite file in WAL mode, append-only, the only thing a run needs to be taken up again.

*Commit rule*: an event, the commands it caused and the payload that came with it are one transaction. A process
killed at any point leaves whole events; a publish is also synced to the disk, so that a power cut loses at most
events after it, never the order. This file does not know what events mean.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from offbeat.errors import RunDirectoryError, RunFailed
from offbeat.events import Command, Event, Trained
from offbeat.records import Batch, Group, Prompt, Trajectory

SCHEMA_VERSION = "1"

_TABLES = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE events(
    seq INTEGER PRIMARY KEY, now REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, commands TEXT NOT NULL);
CREATE TABLE prompts(
    group_id INTEGER PRIMARY KEY, prompt_id INTEGER NOT NULL, dataset TEXT NOT NULL, text TEXT NOT NULL,
    answer TEXT NOT NULL, token_ids BLOB NOT NULL);
CREATE TABLE trajectories(
    trajectory_id INTEGER NOT NULL, attempt INTEGER NOT NULL, record BLOB NOT NULL, reward REAL,
    PRIMARY KEY(trajectory_id, attempt)) WITHOUT ROWID;
"""

_EVENT = msgspec.json.Decoder(Event)
_COMMANDS = msgspec.json.Decoder(list[Command])
_TRAJECTORY = msgspec.msgpack.Decoder(Trajectory)


def _damaged(file: Path, words: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"run {file.parent}: {file.name} cannot be read ({words}); it is damaged or not a run of offbeat: put it back"
        " from a copy, or begin a new run"
    )


class RunLog:
    """A journal (ports.Journal) and the payloads beside it. One writer: the main process."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._db = sqlite3.connect(file, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")

    @classmethod
    def create(cls, file: Path, meta: dict[str, str]) -> RunLog:
        log = cls(file)
        log._db.executescript(_TABLES)
        rows = {"schema": SCHEMA_VERSION, "durable": "0"} | meta
        log._db.executemany("INSERT INTO meta VALUES(?, ?)", rows.items())
        return log

    @classmethod
    def open(cls, file: Path) -> RunLog:
        """Raises RunDirectoryError for anything but a run log of this schema."""
        if not file.is_file():
            raise RunDirectoryError(f"run {file.parent}: holds no {file.name}; name the directory of a run")
        try:
            log = cls(file)
            found = log.meta("schema")
        except sqlite3.DatabaseError as error:
            raise _damaged(file, str(error)) from None
        if found != SCHEMA_VERSION:
            raise RunDirectoryError(f"run {file.parent}: schema {found}, this offbeat writes {SCHEMA_VERSION}")
        return log

    def check(self) -> None:
        """Read the whole file once. Raises RunDirectoryError where a page is damaged: before hours are built on it."""
        try:
            (found,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            raise _damaged(self.file, str(error)) from None
        if found != "ok":
            raise _damaged(self.file, found.splitlines()[-1])

    def meta(self, key: str) -> str:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else ""

    # -- writing ---------------------------------------------------------------------------------------------

    def add_prompt(self, group_id: int, prompt: Prompt) -> None:
        token_ids = msgspec.msgpack.encode(prompt.token_ids)
        row = (group_id, prompt.prompt_id, prompt.dataset, prompt.text, prompt.answer, token_ids)
        self._write("INSERT OR IGNORE INTO prompts VALUES(?, ?, ?, ?, ?, ?)", row)

    def add_trajectory(self, trajectory: Trajectory) -> None:
        row = (trajectory.trajectory_id, trajectory.attempt, msgspec.msgpack.encode(trajectory), None)
        self._write("INSERT OR REPLACE INTO trajectories VALUES(?, ?, ?, ?)", row)

    def set_reward(self, trajectory_id: int, attempt: int, reward: float) -> None:
        row = (reward, trajectory_id, attempt)
        self._write("UPDATE trajectories SET reward = ? WHERE trajectory_id = ? AND attempt = ?", row)

    def record(self, event: Event, now: float, commands: Sequence[Command]) -> None:
        """Commit an event with its commands and all payload added since the last one."""
        body = msgspec.json.encode(event).decode()
        deeds = msgspec.json.encode(commands).decode()
        row = (now, type(event).__name__, body, deeds)
        self._write("INSERT INTO events(now, kind, body, commands) VALUES(?, ?, ?, ?)", row)
        self._commit()
        if isinstance(event, Trained):
            self._make_durable(event.version)

    def _write(self, statement: str, row: tuple[object, ...]) -> None:
        try:
            if not self._db.in_transaction:
                self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(statement, row)
        except sqlite3.OperationalError as error:
            raise self._failed(error) from None

    def _commit(self) -> None:
        try:
            self._db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise self._failed(error) from None

    def _failed(self, error: sqlite3.OperationalError) -> RunFailed:
        return RunFailed(f"the run log {self.file} cannot be written ({error}); make room, then resume the run")

    def _make_durable(self, version: int) -> None:
        """Sync the log: with synchronous=FULL a commit syncs all commits before it, too."""
        self._db.execute("PRAGMA synchronous=FULL")
        self._write("UPDATE meta SET value = ? WHERE key = 'durable'", (str(version),))
        self._commit()
        self._db.execute("PRAGMA synchronous=NORMAL")

    # -- reading ---------------------------------------------------------------------------------------------

    def events(self) -> Iterator[tuple[int, float, Event, list[Command]]]:
        """(seq, now, event, commands) in order."""
        for seq, now, body, commands in self._db.execute("SELECT seq, now, body, commands FROM events ORDER BY seq"):
            yield seq, now, _EVENT.decode(body), _COMMANDS.decode(commands)

    def prompt(self, group_id: int) -> Prompt:
        row = self._db.execute(
            "SELECT prompt_id, dataset, text, answer, token_ids FROM prompts WHERE group_id = ?", (group_id,)
        ).fetchone()
        if row is None:
            raise RunDirectoryError(f"run {self.file.parent}: the prompt of group {group_id} is missing in the log")
        prompt_id, dataset, text, answer, token_ids = row
        return Prompt(prompt_id, dataset, text, answer, msgspec.msgpack.decode(token_ids, type=tuple[int, ...]))

    def trajectory(self, trajectory_id: int, attempt: int) -> tuple[Trajectory, float | None]:
        row = self._db.execute(
            "SELECT record, reward FROM trajectories WHERE trajectory_id = ? AND attempt = ?", (trajectory_id, attempt)
        ).fetchone()
        if row is None:
            raise RunDirectoryError(f"run {self.file.parent}: trajectory {trajectory_id} is missing in the log")
        return _TRAJECTORY.decode(row[0]), row[1]

    def batch(self, iteration: int, group_ids: Sequence[int], attempts: Sequence[Sequence[int]]) -> Batch:
        """The payload of a Train command."""
        groups = []
        for group_id, tries in zip(group_ids, attempts, strict=True):
            first = group_id * len(tries)
            rows = [self.trajectory(first + i, attempt) for i, attempt in enumerate(tries)]
            rewards = tuple(reward for _, reward in rows if reward is not None)
            if len(rewards) < len(rows):
                raise RunDirectoryError(f"run {self.file.parent}: a reward of group {group_id} is missing in the log")
            groups.append(Group(group_id, self.prompt(group_id), tuple(t for t, _ in rows), rewards))
        return Batch(iteration, tuple(groups))

    def close(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._db.close()
