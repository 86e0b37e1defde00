"""Locks on directories that one process at a time may use: one rule for runs, comparisons, studies and caches.

*Lock law*: a lock lives as long as one of the processes that hold or inherit its descriptor, and no longer; the kernel
releases it, so nothing is left behind. A file system without locks is told from a lock that somebody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from offbeat.errors import RunDirectoryError

PAUSE = 0.1
FOR_EVER = math.inf


def hold(file: Path, what: str, seconds: float = 0.0, waiting: Callable[[], None] = lambda: None) -> int:
    """Lock a file, made if need be; the descriptor, which processes may inherit and whose end releases the lock.

    Waits up to `seconds` (infinity: as long as it takes) for another holder and then calls `waiting` first. Raises
    RunDirectoryError naming `what` where it is in use, or cannot be locked at all.
    """
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        reason = f"{file.name} cannot be opened ({error.strerror})"
        raise RunDirectoryError(f"{what}: {reason}; make the directory writable") from None
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, handle)
        try:
            _wait(handle, what, seconds, waiting)
        except OSError as error:
            reason = f"its file system gives no locks ({error.strerror})"
            raise RunDirectoryError(f"{what}: {reason}; put it on a local disk, or mount with locks") from None
        undo.pop_all()
    return handle


def _wait(handle: int, what: str, seconds: float, waiting: Callable[[], None]) -> None:
    deadline, told = time.monotonic() + seconds, False
    while not _locked(handle):
        if time.monotonic() >= deadline:
            raise RunDirectoryError(f"{what}: in use by another process; wait for it or end it")
        if not told:
            waiting()
            told = True
        time.sleep(PAUSE)


def is_held(file: Path) -> bool:
    """Does a process hold the lock of `file`? Takes nothing that another could wait for."""
    try:
        handle = os.open(file, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(handle)
    return False


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
