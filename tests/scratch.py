"""Directories that outlive a test and not its process."""

from __future__ import annotations

import atexit
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp


def scratch(what: str) -> Path:
    """A new directory, gone when this process ends."""
    directory = mkdtemp(prefix=f"offbeat-{what}-")
    atexit.register(rmtree, directory, ignore_errors=True)
    return Path(directory)
