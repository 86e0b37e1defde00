"""The side that asks the fork server for workers: one server for a process, whose end is the server's.

`shared_libraries` lets a process that starts many runs load the libraries once for all of them. Where there can be no
server (another system, a server that died, a large environment) workers are started the slow way.
Knows no messages and no settings.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from offbeat.backends import fork_server as server
from offbeat.backends.scratch import scratch
from offbeat.backends.worker import environment

PRELOADED = (
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "offbeat.models.tokens",
    "offbeat.learner.step",
    "offbeat.rollout.warm_up:warm_up",
    "offbeat.learner.warm_up:warm_up",
)
"""What workers need: modules, and functions that have loops compiled, by threads of nobody."""
_READ_LATER = {"PYTHONPATH", "PYTHONBREAKPOINT"}
"""A worker reads its own; Ray sets the second otherwise for its drivers and for its workers."""
PLACES = "OFFBEAT_FORK_SERVERS"
"""The directory of sockets where servers for other processes' runs listen, in the environment."""


class Forked:
    """A worker that the server has started: what `subprocess.Popen` says of its own child."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._watch = os.pidfd_open(pid)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._watch, signal.SIGKILL)

    def await_end(self, seconds: float) -> None:
        """Wait for its end, but leave it to be waited for: until then its process group keeps its number."""
        poll = select.poll()
        poll.register(self._watch, select.POLLIN)
        poll.poll(seconds * 1000)

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = self._server.reap(self.pid)
            os.close(self._watch)
        return self.returncode


class ForkServer:
    """The side that asks. `dead` once the server is gone."""

    def __init__(self, preloaded: Sequence[str]) -> None:
        """A server of its own, or one that a listening server forks."""
        self.dead = False
        self.kind = _kind()
        self._one_at_a_time = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        shared = _shared_server()
        if shared is None:
            self._socket, self._process = _own_server(preloaded)
        else:
            self._socket = shared

    @property
    def is_own(self) -> bool:
        """It loaded the libraries for this process alone."""
        return self._process is not None

    def fork(self, module: str, environ: dict[str, str], channel: int, errors: int, kept: tuple[int, ...]) -> Forked:
        """Waits until the libraries are loaded. Raises OSError where this way is closed."""
        pid = self._ask(server.Fork(os.getpid(), module, os.getcwd(), environ), (channel, errors, *kept))
        return Forked(self, pid)

    def reap(self, pid: int) -> int:
        """How a worker ended, as `subprocess` counts. With the server all its workers were killed."""
        try:
            return self._ask(server.Reap(pid), ())
        except OSError:
            return -signal.SIGKILL

    def close(self) -> None:
        if self.dead:
            return
        self.dead = True
        self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _ask(self, request: server.Fork | server.Reap, descriptors: tuple[int, ...]) -> int:
        frame = msgspec.msgpack.encode(request)
        if len(frame) > server.LARGEST:
            raise OSError("a request too large")
        with self._one_at_a_time:
            if self.dead:
                raise BrokenPipeError
            try:
                socket.send_fds(self._socket, [frame], descriptors)
                answer = self._socket.recv(server.LARGEST)
            except OSError as error:
                if not isinstance(error, BrokenPipeError | ConnectionResetError):
                    raise
                answer = b""
            if not answer:
                self.close()
                raise BrokenPipeError
        return int(answer)


_current: ForkServer | None = None


def fork_server() -> ForkServer | None:
    """This process's own, started at the first call and again where it has died; None where there can be none."""
    global _current
    if sys.platform != "linux":
        return None
    if _current is not None and not _current.dead and _current.kind != _kind():
        _current.close()
    if _current is None or _current.dead:
        _current = ForkServer(PRELOADED)
        atexit.register(_current.close)
    return _current


@contextmanager
def shared_libraries() -> Iterator[dict[str, str]]:
    """What to add to the environment of the processes that are started meanwhile, for their runs to begin sooner."""
    if sys.platform != "linux" or PLACES in os.environ:
        yield {}
        return
    places = scratch("libraries")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(places / _kind()))
            listener.listen(64)
            listening = _start(listener, PRELOADED)
        try:
            yield {PLACES: str(places)}
        finally:
            listening.kill()
            listening.wait()
    finally:
        shutil.rmtree(places, ignore_errors=True)


def share_libraries() -> dict[str, str]:
    """Load them once for all workers that processes started from now on will have on this machine, until this process
    ends; what tells them so, which is in the environment from now on."""
    if PLACES not in os.environ:
        os.environ.update(_lasting.enter_context(shared_libraries()))
        atexit.register(_lasting.close)
    return {PLACES: os.environ[PLACES]} if PLACES in os.environ else {}


_lasting = ExitStack()


def _own_server(preloaded: Sequence[str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        return ours, _start(theirs, preloaded)


def _start(sock: socket.socket, preloaded: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", server.__name__, str(sock.fileno()), str(os.getpid()), *preloaded],
        pass_fds=(sock.fileno(),),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | environment(1),
        start_new_session=True,
    )


def _shared_server() -> socket.socket | None:
    """A connection to one that loads what this process would load, if any listens."""
    if PLACES not in os.environ:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(str(Path(os.environ[PLACES]) / _kind()))
    except OSError:
        connection.close()
        return None
    return connection


def _kind() -> str:
    """One for all processes that would load the same: interpreter, what it reads at its start, this offbeat."""
    read_at_start = {k: v for k, v in os.environ.items() if k.startswith("PYTHON") and k not in _READ_LATER}
    interpreter = (sys.prefix, os.path.realpath(sys.executable))  # `python` and `python3` are the same
    parts = (*interpreter, str(Path(__file__).resolve().parent), *sorted(read_at_start.items()))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
