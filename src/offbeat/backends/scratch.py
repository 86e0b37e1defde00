"""Directories in TMPDIR that belong to a process and say so by their name: what killed ones left is swept by the next.

A TMPDIR may be shared by machines, so a name tells the machine, too. Names are short: sockets lie in such directories.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import tempfile
from pathlib import Path


def scratch(what: str) -> Path:
    """A new directory of this process; those of the same use whose process is gone from this machine are removed."""
    machine = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    parent, mine = Path(tempfile.gettempdir()), f"offbeat-{what}-{machine}-"
    for left in parent.glob(f"{mine}*"):
        pid = left.name.removeprefix(mine).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{mine}{os.getpid()}-"))
