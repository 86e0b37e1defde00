"""Directories that outlive a test and not its process."""

from __future__ import annotations

import atexit
from pathlib import Path
from shutil import rmtree

from offbeat.backends.scratch import scratch as of_this_process


def scratch(what: str) -> Path:
    """A new directory, gone when this process ends; what a killed one left goes with the next."""
    directory = of_this_process(what)
    atexit.register(rmtree, directory, ignore_errors=True)
    return directory
