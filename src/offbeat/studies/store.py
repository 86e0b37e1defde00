"""A study's directory: one SQLite file with one row for each finished cell, committed whole or not at all.

*Resume invariant*: a row is kept under the digest of its cell, so a study that goes on does only what is missing, and
with another start policy it is refused: cells would not compare. *Reading changes nothing*: a directory that cells are
taken over from is not written to. Knows no model.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from offbeat.errors import RunDirectoryError
from offbeat.studies.cell import Cell, Result

DATABASE = "study.sqlite"
FORMAT = "1"


@contextmanager
def _told(option: str, directory: Path) -> Iterator[None]:
    """What SQLite or a row says is wrong, in one line."""
    try:
        yield
    except (OSError, sqlite3.Error, msgspec.MsgspecError) as error:
        raise RunDirectoryError(f"{option} {directory}: cannot hold a study ({error}); choose another") from None


def _results(database: sqlite3.Connection) -> dict[str, Result]:
    rows = database.execute("SELECT key, result FROM cells").fetchall()
    return {key: msgspec.json.decode(blob, type=Result) for key, blob in rows}


class Store:
    """Finished cells of the study in `directory`. Its methods raise RunDirectoryError where the file is damaged, locked
    for long or cannot grow."""

    def __init__(self, directory: Path) -> None:
        """Open or begin one. Raises RunDirectoryError where the directory holds something else or is damaged."""
        self._directory = directory
        file = directory / DATABASE
        if directory.exists() and not file.exists() and (directory.is_file() or any(directory.iterdir())):
            raise RunDirectoryError(f"--out {directory}: exists and is no study; choose another directory")
        with _told("--out", directory):
            directory.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(file)
            with self._database:
                self._database.execute("CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
                self._database.execute(
                    "CREATE TABLE IF NOT EXISTS cells (key TEXT PRIMARY KEY, cell BLOB NOT NULL, result BLOB NOT NULL)"
                )
        self.agree("format", FORMAT, "it is of another version of offbeat")

    def agree(self, key: str, value: str, why: str) -> None:
        """Write down a fact about the study, or check that it is still so. Raises RunDirectoryError with `why`."""
        with _told("--out", self._directory):
            row = self._database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            if row is None:
                with self._database:
                    self._database.execute("INSERT INTO meta VALUES (?, ?)", (key, value))
                return
        if row[0] != value:
            raise RunDirectoryError(f"--out {self._directory}: {why} ({row[0]}, now {value}); choose another directory")

    def results(self) -> dict[str, Result]:
        """Every finished cell's result by its key."""
        with _told("--out", self._directory):
            return _results(self._database)

    def add(self, cell: Cell, result: Result) -> None:
        with _told("--out", self._directory), self._database:
            self._database.execute(
                "INSERT OR REPLACE INTO cells VALUES (?, ?, ?)",
                (cell.key, msgspec.json.encode(cell), msgspec.json.encode(result)),
            )

    def take_over(self, other: Finished, wanted: Sequence[Cell], policy: str) -> int:
        """Copy the finished ones of `wanted` and return how many. Raises RunDirectoryError where those cells began with
        another start policy."""
        if other.policy not in (None, policy):
            why = f"its cells began with another start policy ({other.policy}, now {policy})"
            raise RunDirectoryError(f"--reuse {other.directory}: {why}; leave it out")
        mine = self.results()
        found = [cell for cell in wanted if cell.key in other.results and cell.key not in mine]
        for cell in found:
            self.add(cell, other.results[cell.key])
        return len(found)

    def close(self) -> None:
        self._database.close()


class Finished:
    """What another study's directory holds, read once: results by cell key, and the start policy where it had one."""

    def __init__(self, directory: Path) -> None:
        """Raises RunDirectoryError where there is no study, or none of this format."""
        self.directory = directory
        if not (directory / DATABASE).is_file():
            raise RunDirectoryError(f"--reuse {directory}: no study there; give the --out of one")
        with _told("--reuse", directory):
            database = sqlite3.connect(f"{(directory / DATABASE).resolve().as_uri()}?mode=ro", uri=True)
            try:
                facts = dict(database.execute("SELECT key, value FROM meta").fetchall())
                self.results = _results(database)
            finally:
                database.close()
        self.policy: str | None = facts.get("policy")
        if facts.get("format") != FORMAT:
            raise RunDirectoryError(f"--reuse {directory}: it is of another version of offbeat; leave it out")
