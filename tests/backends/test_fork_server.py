"""A forked worker is like one in a new interpreter: what it finds, how it ends, what is left of it."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from offbeat.backends import forking
from offbeat.backends.fork_server import LARGEST, title
from offbeat.backends.forking import PLACES, Forked, ForkServer, fork_server, shared_libraries

from .test_local import soon

WORKER = """
import json, os, resource, sys, time
from pathlib import Path
channel = int(sys.argv[-1])
order = os.read(channel, 100).decode()
print("printed by", __name__)
if order == "tell":
    descriptors = []
    for number in os.listdir("/proc/self/fd"):
        try:
            descriptors.append(os.readlink(f"/proc/self/fd/{number}").split(":")[0])
        except FileNotFoundError:
            "the directory that was listed"
    Path("told.json").write_text(json.dumps({
        "directory": os.getcwd(), "mark": os.environ.get("MARK"), "leads": os.getsid(0) == os.getpid(),
        "argv": sys.argv, "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "descriptors": sorted(descriptors),
    }))
elif order == "fail":
    raise ValueError("as it is")
elif order == "exit":
    sys.exit(7)
elif order == "sleep":
    time.sleep(600)
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    monkeypatch.delenv(PLACES, raising=False)
    server = ForkServer(["json", "no.such.library"])
    yield server
    server.close()


class Began:
    """A worker with the orders it was given."""

    def __init__(self, server: ForkServer, folder: Path, order: str, kept: tuple[int, ...] = ()) -> None:
        if not (folder / "told_worker.py").exists():  # another one may be reading it
            (folder / "told_worker.py").write_text(WORKER)
        self.printed = folder / "printed.log"
        before, mine = os.getcwd(), os.pipe()
        os.chdir(folder)
        try:
            with self.printed.open("ab") as errors:
                self.forked: Forked = server.fork(
                    "told_worker", {**os.environ, "MARK": order}, mine[0], errors.fileno(), kept
                )
        finally:
            os.chdir(before)
        os.write(mine[1], order.encode())
        os.close(mine[0])
        os.close(mine[1])


def test_it_finds_the_directory_environment_and_descriptors_of_who_asked(server: ForkServer, tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        assert Began(server, tmp_path / name, "tell", (lock,)).forked.wait() == 0
        told = json.loads((tmp_path / name / "told.json").read_text())
        assert (told["directory"], told["mark"], told["leads"]) == (str(tmp_path / name), "tell", True)
        assert len(told["argv"]) == 2
        printed = str(tmp_path / name / "printed.log")
        own = ["/dev/null", "pipe", str(tmp_path / "lock"), printed, printed]
        assert told["descriptors"] == sorted(own), "and nothing of the server or of another worker"
    os.close(lock)


def test_the_server_keeps_nothing_open_of_a_worker(server: ForkServer, tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    began = Began(server, tmp_path, "sleep", (lock,))
    worker = psutil.Process(began.forked.pid)
    assert soon(lambda: " ".join(worker.cmdline()).strip() == title("told_worker", os.getpid()))
    os.close(lock)
    again = os.open(tmp_path / "lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    began.forked.kill()
    assert began.forked.wait() == -signal.SIGKILL
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(again)


def test_it_ends_as_an_interpreter_does_and_its_last_words_are_kept(server: ForkServer, tmp_path: Path) -> None:
    failed, left = Began(server, tmp_path, "fail"), Began(server, tmp_path, "exit")
    failed.forked.await_end(30)
    assert psutil.pid_exists(failed.forked.pid), "its number is not given anew before it was waited for"
    assert (failed.forked.wait(), left.forked.wait(), failed.forked.wait()) == (1, 7, 1)
    words = failed.printed.read_text()
    assert "printed by __main__" in words
    assert words.count("ValueError: as it is") == 1
    assert not psutil.pid_exists(failed.forked.pid)


def test_a_server_whose_process_ended_before_it_began_holds_nothing() -> None:
    """Or what was sent to it, a run's lock, say, would be held until it has loaded everything."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        gone = subprocess.Popen(["true"])
        gone.wait()
        words = [
            sys.executable,
            "-m",
            "offbeat.backends.fork_server",
            str(theirs.fileno()),
            str(gone.pid),
            "time:sleep",
        ]
        server = subprocess.Popen(words, pass_fds=(theirs.fileno(),))
        assert server.wait(timeout=60) == 0
        theirs.close()
        assert ours.recv(1) == b""


def test_with_the_server_end_its_workers_and_another_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "PRELOADED", ())
    monkeypatch.delenv(PLACES, raising=False)
    monkeypatch.setattr(forking, "_current", None)
    server = fork_server()
    assert server is not None
    assert fork_server() is server
    worker = Began(server, tmp_path, "sleep").forked
    server._process.kill()
    assert soon(lambda: not psutil.pid_exists(worker.pid) or psutil.Process(worker.pid).status() == "zombie")
    assert worker.wait() == -signal.SIGKILL
    with pytest.raises(OSError):
        Began(server, tmp_path, "tell")
    other = fork_server()
    assert other is not None
    assert other is not server
    assert Began(other, tmp_path, "tell").forked.wait() == 0
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    third = fork_server()
    assert third is not None
    assert third is not other
    assert other.dead, "an interpreter reads this once"
    third.close()


def test_one_loading_serves_many_processes_each_by_a_server_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "PRELOADED", ("json",))
    monkeypatch.delenv(PLACES, raising=False)
    with shared_libraries() as added:
        for name, value in added.items():
            monkeypatch.setenv(name, value)
        servers = [ForkServer(()), ForkServer(())]
        assert all(server._process is None for server in servers)
        workers = [Began(server, tmp_path, "sleep").forked for server in servers]
        parents = [psutil.Process(worker.pid).ppid() for worker in workers]
        assert len({os.getpid(), *parents}) == 3
        servers[0].close()
        assert soon(lambda: not psutil.pid_exists(workers[0].pid)), "its workers end with a server"
        assert psutil.pid_exists(workers[1].pid)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (333, files[1]))
        try:
            limited = ForkServer(())
            assert Began(limited, tmp_path, "tell").forked.wait() == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, files)
        assert json.loads((tmp_path / "told.json").read_text())["files"] == 333
        monkeypatch.setenv("PYTHONBREAKPOINT", "ray.util.rpdb.set_trace")
        assert ForkServer(())._process is None, "what Ray's workers have of their own changes nothing"
        monkeypatch.setenv("PYTHONHASHSEED", "1")
        assert ForkServer(())._process is not None, "none listens that was started like this"
    assert soon(lambda: not psutil.pid_exists(workers[1].pid))
    assert workers[1].wait() == -signal.SIGKILL


def test_an_environment_too_large_is_for_the_slow_way(server: ForkServer, tmp_path: Path) -> None:
    with pytest.raises(OSError), (tmp_path / "log").open("ab") as errors:
        server.fork("told_worker", {"LARGE": "x" * (LARGEST + 1)}, errors.fileno(), errors.fileno(), ())
    assert Began(server, tmp_path, "tell").forked.wait() == 0
