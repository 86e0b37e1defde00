"""Processes that tests need beside their own: forked from the session's server, which has loaded the libraries."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from offbeat.backends.forking import Forked
from offbeat.backends.local import Spawned, end_group, launch_module
from offbeat.testing.subject import python_path

ARGUMENTS = "OFFBEAT_TEST_ARGUMENTS"
ROOT = Path(__file__).resolve().parents[1]


def arguments() -> list[str]:
    """What `begin` was given, in the process that it began."""
    return list(json.loads(os.environ[ARGUMENTS]))


def begin(module: str, *given: str, errors: Path) -> Spawned | Forked:
    """`python -m module`, what it prints in a file."""
    path = python_path({"PYTHONPATH": str(ROOT)})
    environment = os.environ | {ARGUMENTS: json.dumps(given), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    unused, channel = socket.socketpair()
    with unused, channel, errors.open("wb") as file:
        return launch_module(module, channel.fileno(), file.fileno(), environment)


def ended(process: Spawned | Forked, errors: Path, seconds: float = 200.0) -> None:
    """Wait for its end, which must be a good one and in time."""
    process.await_end(seconds)
    assert end_group(process) == 0, errors.read_text()
