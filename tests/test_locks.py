"""One rule for every lock: held by one, inherited, released by the kernel, and told from a disk that has none."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from offbeat.errors import RunDirectoryError
from offbeat.locks import FOR_EVER, hold, is_held


def test_one_holds_it_and_the_others_are_told(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    assert not is_held(file)
    held = hold(file, "run x")
    assert is_held(file)
    with pytest.raises(RunDirectoryError, match="run x: in use by another process"):
        hold(file, "run x")
    os.close(held)
    assert not is_held(file)
    os.close(hold(file, "run x"))


def test_who_waits_says_so_once_and_gets_it(tmp_path: Path) -> None:
    file, said = tmp_path / "lock", []
    held = hold(file, "run x")
    threading.Timer(0.3, os.close, (held,)).start()
    os.close(hold(file, "run x", FOR_EVER, lambda: said.append(time.monotonic())))
    assert len(said) == 1
    os.close(hold(file, "run x", 1.0, lambda: said.append(0.0)))
    assert len(said) == 1


def test_a_process_that_inherits_it_holds_it(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    held = hold(file, "run x")
    child = subprocess.Popen([sys.executable, "-c", "input()"], pass_fds=(held,), stdin=subprocess.PIPE)
    os.close(held)
    assert is_held(file)
    child.kill()
    child.communicate()
    assert not is_held(file)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_disk_without_locks_is_no_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(handle: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(RunDirectoryError, match=r"run x: its file system gives no locks.*local disk"):
        hold(tmp_path / "lock", "run x", 5.0)
    assert not is_held(tmp_path / "lock")
    assert len(os.listdir("/proc/self/fd")) == before
