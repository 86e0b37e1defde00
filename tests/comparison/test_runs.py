"""No run outlives its comparison, and nobody's run is removed: with a process in the place of `offbeat train`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offbeat.comparison.contestants import Contestant, Order
from offbeat.comparison.runs import LOG_NAME, Ours, make_run
from offbeat.errors import RunDirectoryError
from offbeat.live.runlog import RunLog
from offbeat.locks import hold

COMPARISON = """
import sys
from pathlib import Path
from offbeat.comparison.compare import compare
from offbeat.comparison.contestants import Order
sys.executable = sys.argv[2]
compare(Path(sys.argv[1]), Order(None, (), ("sync",), 20, 1, 1), 5, print)
"""


def contestant() -> Contestant:
    return Order(None, (), ("sync",), 20, 1, 1).contestants()[0]


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel to tell the run")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_ends_with_its_comparison_and_holds_the_directory_until_then(tmp_path: Path, how: signal.Signals) -> None:
    stand_in, pid_file = tmp_path / "train", tmp_path / "pid"
    stand_in.write_text(f"#!/bin/sh\ntrap 'sleep 1; exit 0' TERM\necho $$ > {pid_file}\nwhile :; do sleep 0.1; done\n")
    stand_in.chmod(0o755)
    command = [sys.executable, "-c", COMPARISON, str(tmp_path / "out"), str(stand_in)]
    comparison = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until(lambda: pid_file.exists() and bool(pid_file.read_text()))
    run = int(pid_file.read_text())
    comparison.send_signal(how)
    comparison.wait()
    if alive(run):
        with pytest.raises(RunDirectoryError, match="in use"):
            hold(tmp_path / "out" / LOG_NAME, "the comparison")
    until(lambda: not alive(run))
    os.close(hold(tmp_path / "out" / LOG_NAME, "the comparison"))


def test_an_unfinished_run_that_somebody_uses_is_not_removed(tmp_path: Path) -> None:
    place = tmp_path / contestant().name
    place.mkdir()
    meta = {"settings": contestant().settings.model_dump_json(), "offbeat_version": "0"}
    RunLog.create(place / "run.sqlite", meta).close()
    lock = hold(tmp_path / LOG_NAME, str(tmp_path))
    user = hold(place / "lock", str(place))
    with pytest.raises(RunDirectoryError, match="in use by another process"):
        make_run(tmp_path, None, contestant(), Ours(lock, {}), lambda words: None)
    assert (place / "run.sqlite").exists()
    os.close(user)
    os.close(lock)
