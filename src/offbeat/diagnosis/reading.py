"""Reads a case from a run directory; writes nothing, and holds nothing a run could wait for.

What can be read of a damaged log is read. Whether a process of the run lives is asked of the run's lock.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from offbeat.backends.weights import version_damage, version_directory
from offbeat.diagnosis.case import Case, Place
from offbeat.locks import is_held
from offbeat.report.read import DATABASE, read_log
from offbeat.report.story import tell

LOCK = "lock"
WORKERS_LOG = "workers.log"


def read_case(directory: Path) -> Case:
    """Raises RunDirectoryError, in one line, where not even the settings can be read."""
    run, damage = read_log(directory)
    used, story = is_held(directory / LOCK), tell(run)
    digests = {0: run.meta.get("digest_0", "")} | story.digests
    newest = max(digests)
    over = story.outcome == "finished" and (directory / "model" / "model.safetensors").is_file()
    place = Place(
        in_use=used,
        silent_seconds=_silent_seconds(directory),
        free_bytes=_free_bytes(directory),
        checkpoint_bytes=_size(version_directory(directory, newest)),
        checkpoint_damage="" if used or over or damage else version_damage(directory, newest, digests[newest]),
        last_words=_last_line(directory / WORKERS_LOG),
        log_damage=damage,
    )
    return Case(run, place)


def _silent_seconds(directory: Path) -> float:
    files = (directory / DATABASE, directory / f"{DATABASE}-wal")
    return max(0.0, time.time() - max(file.stat().st_mtime for file in files if file.exists()))


def _free_bytes(directory: Path) -> int:
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize


def _size(directory: Path) -> int | None:
    sizes = [file.stat().st_size for file in directory.glob("*")] if directory.is_dir() else []
    return sum(sizes) or None


def _last_line(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - 4096))
            lines = [line.strip() for line in opened.read().decode(errors="replace").splitlines()]
    except OSError:
        return ""
    return next((line for line in reversed(lines) if line), "")
