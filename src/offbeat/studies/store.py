"""A study's directory: one SQLite file with one row for each finished cell, committed whole or not at all.

*Resume invariant*: a row is kept under the digest of its cell, so a study that goes on does only what is missing, and
with another start policy it is refused: cells would not compare. Knows no model.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

import msgspec

from offbeat.errors import RunDirectoryError
from offbeat.studies.cell import Cell, Result

DATABASE = "study.sqlite"
FORMAT = "1"


class Store:
    """Finished cells of the study in `directory`."""

    def __init__(self, directory: Path) -> None:
        """Open or begin one. Raises RunDirectoryError where the directory holds something else or is damaged."""
        self._directory = directory
        file = directory / DATABASE
        if directory.exists() and not file.exists() and (directory.is_file() or any(directory.iterdir())):
            raise RunDirectoryError(f"--out {directory}: exists and is no study; choose another directory")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(file)
            with self._database:
                self._database.execute("CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
                self._database.execute(
                    "CREATE TABLE IF NOT EXISTS cells (key TEXT PRIMARY KEY, cell BLOB NOT NULL, result BLOB NOT NULL)"
                )
        except (OSError, sqlite3.Error) as error:
            raise RunDirectoryError(f"--out {directory}: cannot hold a study ({error}); choose another") from None
        self.agree("format", FORMAT, "it is of another version of offbeat")

    def agree(self, key: str, value: str, why: str) -> None:
        """Write down a fact about the study, or check that it is still so. Raises RunDirectoryError with `why`."""
        row = self._database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if row is None:
            with self._database:
                self._database.execute("INSERT INTO meta VALUES (?, ?)", (key, value))
        elif row[0] != value:
            raise RunDirectoryError(f"--out {self._directory}: {why} ({row[0]}, now {value}); choose another directory")

    def results(self) -> dict[str, Result]:
        """Every finished cell's result by its key."""
        rows = self._database.execute("SELECT key, result FROM cells").fetchall()
        return {key: msgspec.json.decode(blob, type=Result) for key, blob in rows}

    def add(self, cell: Cell, result: Result) -> None:
        with self._database:
            self._database.execute(
                "INSERT OR REPLACE INTO cells VALUES (?, ?, ?)",
                (cell.key, msgspec.json.encode(cell), msgspec.json.encode(result)),
            )

    def take_over(self, directory: Path, wanted: Iterable[Cell], policy: str) -> None:
        """Copy the finished ones of `wanted` from another study's directory. Raises RunDirectoryError where that is
        none, or its cells began with another start policy."""
        if not (directory / DATABASE).is_file():
            raise RunDirectoryError(f"--reuse {directory}: no study there; give the --out of one")
        other = Store(directory)
        try:
            other.agree("policy", policy, "its cells began with another start policy")
            mine, theirs = self.results(), other.results()
        finally:
            other.close()
        for cell in wanted:
            if cell.key in theirs and cell.key not in mine:
                self.add(cell, theirs[cell.key])

    def close(self) -> None:
        self._database.close()
