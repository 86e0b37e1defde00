"""The shelf of published versions in a run directory: which digests the log announced, which files may go.

Live versions stay, and so do the newest `keep` retired ones (for `offbeat verify --recompute`) and the weights of
version 0, which drift is measured from. Optimizer state is
kept for the newest two versions only: the one to resume from and the one before it. *Flat*: what is no longer kept is
forgotten, too.
"""

from __future__ import annotations

import shutil
from collections import deque
from pathlib import Path

from offbeat.backends.weights import shed_optimizer, version_directory


class VersionShelf:
    """`digests` maps every version that is kept to the SHA-256 of its weights, as the run log has it."""

    def __init__(self, run_directory: Path, keep: int, digest_0: str) -> None:
        self._run_directory = run_directory
        self._keep = keep
        self.digests = {0: digest_0}
        self._retired: deque[int] = deque()

    @property
    def newest(self) -> int:
        return max(self.digests)

    def publish(self, version: int, digest: str) -> None:
        self.digests[version] = digest

    def forget(self, version: int) -> list[int]:
        """Book a version as retired; those that are no longer kept."""
        self._retired.append(version)
        gone = [self._retired.popleft() for _ in range(len(self._retired) - self._keep)]
        for old in gone:
            if old > 0:
                del self.digests[old]
        return [old for old in gone if old > 0]

    def retire(self, version: int) -> None:
        """Drop what is no longer kept."""
        for old in self.forget(version):
            shutil.rmtree(version_directory(self._run_directory, old), ignore_errors=True)
        self._shed()

    def sweep(self) -> None:
        """Make the directory what the log says: what was written but never logged goes (its iteration will be done
        again), and so does what an earlier session could not remove any more."""
        for directory in sorted((self._run_directory / "versions").glob("*")):
            unknown = directory.name.isdigit() and int(directory.name) not in self.digests
            if unknown or directory.name.startswith("."):
                shutil.rmtree(directory, ignore_errors=True)
        self._shed()

    def _shed(self) -> None:
        """Leave optimizer state to the newest two versions."""
        for kept in (0, *self._retired):
            if kept < self.newest - 1:
                shed_optimizer(self._run_directory, kept)
