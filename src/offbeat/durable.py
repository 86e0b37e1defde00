"""What is written survives a crash of the machine once `sync` has returned. Knows no format and no torch.

*Whole-or-not-at-all*: a directory that others look for is written beside its place and put there by `put_in_place`.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from offbeat.errors import WeightsError


def sync(path: Path) -> None:
    """Flush a file's content, or a directory's entries (what was made, renamed or deleted in it), to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(root: Path) -> None:
    """Sync a directory and all that lies under it."""
    for directory, _, files in os.walk(root, topdown=False):
        for name in files:
            sync(Path(directory) / name)
        sync(Path(directory))


def put_in_place(aside: Path, final: Path) -> None:
    """Sync all of `aside` and rename it: whatever happens, `final` is there with all of it or not at all.

    Raises OSError where `final` is a directory that holds something.
    """
    sync_tree(aside)
    os.rename(aside, final)
    sync(final.parent)


def file_digest(file: Path) -> str:
    """SHA-256 of a file. Raises WeightsError where it cannot be read."""
    try:
        with open(file, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise WeightsError(f"weights {file} cannot be read: {error.strerror}") from None
