"""The shelf of published versions in a run directory: which digests the log announced, which files may go.

Live versions stay, and so do the newest `keep` retired ones (for `offbeat verify --recompute`) and the weights of
version 0, which drift is measured from. Optimizer state is
kept for the newest two versions only: the one to resume from and the one before it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from offbeat.backends.weights import version_directory


class VersionShelf:
    """`digests` maps every published version to the SHA-256 of its weights, as the run log has it."""

    def __init__(self, run_directory: Path, keep: int, digests: dict[int, str], retired: list[int]) -> None:
        self._run_directory = run_directory
        self._keep = keep
        self.digests = digests
        self._retired: list[int] = []
        for version in retired:
            self.retire(version)

    def retire(self, version: int) -> None:
        """Drop what is no longer kept."""
        self._retired.append(version)
        newest = max(self.digests)
        if version < newest - 1:
            (version_directory(self._run_directory, version) / "optimizer.safetensors").unlink(missing_ok=True)
        while len(self._retired) > self._keep:
            old = self._retired.pop(0)
            if old > 0:
                shutil.rmtree(version_directory(self._run_directory, old), ignore_errors=True)

    def discard_unlogged(self) -> None:
        """Delete versions that were written but never logged: their iteration will be done again."""
        for directory in sorted((self._run_directory / "versions").glob("*")):
            unlogged = directory.name.isdigit() and int(directory.name) not in self.digests
            if unlogged or directory.name.startswith("."):
                shutil.rmtree(directory, ignore_errors=True)
