"""Processes that tests need beside their own: forked from the session's server, which has loaded the libraries."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from offbeat.backends.forking import Forked, fork_server

ARGUMENTS = "OFFBEAT_TEST_ARGUMENTS"
ROOT = Path(__file__).resolve().parents[1]


def arguments() -> list[str]:
    """What `begin` was given, in the process that it began."""
    return list(json.loads(os.environ[ARGUMENTS]))


def begin(module: str, *given: str, errors: Path) -> Forked | subprocess.Popen[bytes]:
    """`python -m module`, its standard error in a file."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = os.environ | {ARGUMENTS: json.dumps(given), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    server = fork_server()
    with errors.open("wb") as file:
        if server is None:
            return subprocess.Popen([sys.executable, "-m", module], env=environment, stderr=file)
        unused, theirs = socket.socketpair()
        with unused, theirs:
            return server.fork(module, dict(environment), theirs.fileno(), file.fileno(), ())


def ended(process: Forked | subprocess.Popen[bytes], errors: Path) -> None:
    """Wait for its end, which must be a good one."""
    code = process.wait()
    assert code == 0, errors.read_text()
