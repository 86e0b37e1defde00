"""The run log: one SQLite file in WAL mode, append-only, the only thing a run needs to be taken up again.

*Commit rule*: an event, the commands it caused and the payload that came with it (a response, a reward) are one
transaction; a prompt, which can be drawn anew, comes no later than with the next event. A process killed at any point
leaves whole events; a publish is also synced to the disk, so that a power cut loses at most events after it, never the
order.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from offbeat.errors import RunDirectoryError, RunFailed
from offbeat.events import Command, Event, Finished, Scored, Trained
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
_TOKEN_IDS = msgspec.msgpack.Decoder(tuple[int, ...])


def _damaged(file: Path, words: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"run {file.parent}: {file.name} cannot be read ({words}); it is damaged or not a run of offbeat: put it back"
        " from a copy, or begin a new run"
    )


class RunLog:
    """A journal (ports.Journal) and the payloads beside it. One writer: the main process."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            self._db = sqlite3.connect(file, isolation_level=None)
        except sqlite3.Error as error:
            raise _damaged(file, str(error)) from None
        self._unrecorded: dict[tuple[int, int], Trajectory] = {}

    @classmethod
    def create(cls, file: Path, meta: dict[str, str]) -> RunLog:
        """Raises RunFailed where the disk refuses."""
        log = cls(file)
        try:
            log._set_up()
            log._db.executescript(_TABLES)
            rows = {"schema": SCHEMA_VERSION} | meta
            log._db.executemany("INSERT INTO meta VALUES(?, ?)", rows.items())
        except sqlite3.Error as error:
            log._db.close()
            raise RunFailed(f"the run log {file.name} cannot be written ({error}); make room, then try again") from None
        return log

    def _set_up(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")

    @classmethod
    def open(cls, file: Path) -> RunLog:
        """Raises RunDirectoryError for anything but a run log of this schema."""
        if not file.is_file():
            raise RunDirectoryError(f"run {file.parent}: holds no {file.name}; name the directory of a run")
        log = cls(file)
        try:
            log._set_up()
            found = log.meta("schema")
            if found != SCHEMA_VERSION:
                raise RunDirectoryError(f"run {file.parent}: schema {found}, this offbeat writes {SCHEMA_VERSION}")
        except (RunDirectoryError, sqlite3.Error) as error:
            log._db.close()
            raise error if isinstance(error, RunDirectoryError) else _damaged(file, str(error)) from None
        return log

    def check(self) -> None:
        """Read the whole file once. Raises RunDirectoryError where a page is damaged: before hours are built on it."""
        [(found,)] = self._read("PRAGMA quick_check(1)")
        if found != "ok":
            raise _damaged(self.file, found.splitlines()[-1])

    def meta(self, key: str) -> str:
        """The value of a key; empty where there is none."""
        return "".join(value for (value,) in self._read("SELECT value FROM meta WHERE key = ?", (key,)))

    # -- writing ---------------------------------------------------------------------------------------------

    def add_prompt(self, group_id: int, prompt: Prompt) -> None:
        token_ids = msgspec.msgpack.encode(prompt.token_ids)
        row = (group_id, prompt.prompt_id, prompt.dataset, prompt.text, prompt.answer, token_ids)
        self._write("INSERT OR IGNORE INTO prompts VALUES(?, ?, ?, ?, ?, ?)", row)

    def add_trajectory(self, trajectory: Trajectory) -> None:
        """Kept until its `Finished` is recorded: other events may come before."""
        self._unrecorded[trajectory.trajectory_id, trajectory.attempt] = trajectory

    def record(self, event: Event, now: float, commands: Sequence[Command]) -> None:
        """Commit an event with its commands and the payload that came with it."""
        if isinstance(event, Trained):
            self._sync_commits(True)
        if isinstance(event, Finished):
            self._write_trajectory(event.trajectory_id, event.attempt)
        elif isinstance(event, Scored):
            row = (event.reward, event.trajectory_id, event.attempt)
            self._write("UPDATE trajectories SET reward = ? WHERE trajectory_id = ? AND attempt = ?", row)
        body = msgspec.json.encode(event).decode()
        deeds = msgspec.json.encode(commands).decode()
        line = (now, type(event).__name__, body, deeds)
        self._write("INSERT INTO events(now, kind, body, commands) VALUES(?, ?, ?, ?)", line)
        self._commit()
        if isinstance(event, Trained):
            self._sync_commits(False)

    def _write_trajectory(self, trajectory_id: int, attempt: int) -> None:
        trajectory = self._unrecorded.pop((trajectory_id, attempt), None)
        if trajectory is not None:
            row = (trajectory_id, attempt, msgspec.msgpack.encode(trajectory), None)
            self._write("INSERT OR REPLACE INTO trajectories VALUES(?, ?, ?, ?)", row)

    def _write(self, statement: str, row: tuple[object, ...]) -> None:
        try:
            if not self._db.in_transaction:
                self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(statement, row)
        except sqlite3.Error as error:
            raise self._failed(error) from None

    def _commit(self) -> None:
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failed(error) from None

    def _failed(self, error: sqlite3.Error) -> RunFailed:
        return RunFailed(f"the run log {self.file} cannot be written ({error}); make room, then resume the run")

    def _sync_commits(self, wanted: bool) -> None:
        """With synchronous=FULL a commit is on the disk, and with it all commits before it."""
        if self._db.in_transaction:  # the setting does not change within one: what waits is committed first
            self._commit()
        self._db.execute(f"PRAGMA synchronous={'FULL' if wanted else 'NORMAL'}")

    # -- reading ---------------------------------------------------------------------------------------------

    def events(self) -> Iterator[tuple[int, float, Event, list[Command]]]:
        """(seq, now, event, commands) in order. Raises RunDirectoryError for what this offbeat cannot read."""
        for seq, now, kind, body, commands in self._read(
            "SELECT seq, now, kind, body, commands FROM events ORDER BY seq"
        ):
            yield seq, now, self._decoded(_EVENT, body, kind), self._decoded(_COMMANDS, commands, kind)

    def prompt(self, group_id: int) -> Prompt:
        rows = self._read(
            "SELECT prompt_id, dataset, text, answer, token_ids FROM prompts WHERE group_id = ?", (group_id,)
        )
        for prompt_id, dataset, text, answer, token_ids in rows:
            return Prompt(prompt_id, dataset, text, answer, self._decoded(_TOKEN_IDS, token_ids, "prompt"))
        raise RunDirectoryError(f"run {self.file.parent}: the prompt of group {group_id} is missing in the log")

    def trajectory(self, trajectory_id: int, attempt: int) -> tuple[Trajectory, float | None]:
        rows = self._read(
            "SELECT record, reward FROM trajectories WHERE trajectory_id = ? AND attempt = ?", (trajectory_id, attempt)
        )
        for record, reward in rows:
            return self._decoded(_TRAJECTORY, record, f"trajectory {trajectory_id}"), reward
        raise RunDirectoryError(f"run {self.file.parent}: trajectory {trajectory_id} is missing in the log")

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

    def _read(self, query: str, row: tuple[object, ...] = ()) -> Iterator[tuple[Any, ...]]:
        try:
            # `yield from` would close the cursor when this is forgotten, maybe in a thread that must not touch it
            for found in self._db.execute(query, row):  # noqa: UP028
                yield found
        except sqlite3.Error as error:
            raise _damaged(self.file, str(error)) from None

    def _decoded(self, decoder: Any, content: Any, what: str) -> Any:
        try:
            return decoder.decode(content)
        except (msgspec.MsgspecError, TypeError) as error:
            raise RunDirectoryError(
                f"run {self.file.parent}: {what} in {self.file.name} cannot be read ({error}); it is damaged or of"
                f" another offbeat: use offbeat {self.meta('offbeat_version')}, or put it back from a copy"
            ) from None

    def close(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._db.close()
