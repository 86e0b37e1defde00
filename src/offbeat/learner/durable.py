"""What is written survives a crash of the machine once `sync` has returned. Knows no format and no torch."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Flush a file's content, or a directory's entries (what was made, renamed or deleted in it), to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
