"""A process that has loaded the large libraries once and forks a run's workers, which share its memory.

A worker is up seconds sooner, a replacement in milliseconds. *Clean-fork invariant*: the server has no threads, no
device and no foreign code in it, and keeps nothing open of a worker; a worker finds the working directory, environment
and descriptors of the process that asked for it. The server ends with that process, and all its workers with it.
Linux only; without it workers are started the slow way. Knows no messages and no settings.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from offbeat.backends.worker import die_with_parent, environment

PRELOADED = (
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "offbeat.models.tokens",
    "offbeat.learner.step",
    "offbeat.rollout.engine",
)
LARGEST = 1 << 17
"""Bytes of a request; a larger environment is not for this way."""
DESCRIPTORS = 8


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Run a module as a worker. With it come its channel, the file for what it prints, and what it keeps open."""

    module: str
    directory: str
    environment: dict[str, str]


class Reap(msgspec.Struct, frozen=True, tag=True):
    """Wait for the end of a worker; its number may be given anew afterwards."""

    pid: int


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
        self.dead = False
        self.python = _python_settings()
        self._one_at_a_time = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno()), *preloaded],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | environment(1),
            start_new_session=True,
        )
        theirs.close()

    def fork(self, module: str, environ: dict[str, str], channel: int, errors: int, kept: tuple[int, ...]) -> Forked:
        """Waits until the libraries are loaded. Raises OSError where this way is closed."""
        pid = self._ask(Fork(module, os.getcwd(), environ), (channel, errors, *kept))
        return Forked(self, pid)

    def reap(self, pid: int) -> int:
        """How a worker ended, as `subprocess` counts. With the server all its workers were killed."""
        try:
            return self._ask(Reap(pid), ())
        except OSError:
            return -signal.SIGKILL

    def close(self) -> None:
        if self.dead:
            return
        self.dead = True
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _ask(self, request: Fork | Reap, descriptors: tuple[int, ...]) -> int:
        frame = msgspec.msgpack.encode(request)
        if len(frame) > LARGEST:
            raise OSError("a request too large")
        with self._one_at_a_time:
            if self.dead:
                raise BrokenPipeError
            try:
                socket.send_fds(self._socket, [frame], descriptors)
                answer = self._socket.recv(LARGEST)
            except OSError as error:
                if not isinstance(error, BrokenPipeError | ConnectionResetError):
                    raise
                answer = b""
            if not answer:
                self.close()
                raise BrokenPipeError
        return int(answer)


_shared: ForkServer | None = None


def fork_server() -> ForkServer | None:
    """This process's own, started at the first call and again where it has died; None where there can be none."""
    global _shared
    if sys.platform != "linux":
        return None
    if _shared is not None and not _shared.dead and _shared.python != _python_settings():
        _shared.close()
    if _shared is None or _shared.dead:
        _shared = ForkServer(PRELOADED)
        atexit.register(_shared.close)
    return _shared


def _python_settings() -> dict[str, str]:
    """What an interpreter reads at its start, and never again."""
    return {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}


# -- in the server -----------------------------------------------------------------------------------------------------


def serve(sock: socket.socket) -> None:
    """Fork and reap as asked until the other side is gone. One thread, nothing but libraries loaded."""
    decoder = msgspec.msgpack.Decoder(Fork | Reap)
    while True:
        frame, descriptors, _, _ = socket.recv_fds(sock, LARGEST, DESCRIPTORS)
        if not frame:
            return
        request = decoder.decode(frame)
        if isinstance(request, Reap):
            _, status = os.waitpid(request.pid, 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = _fork(request, descriptors, sock)
        for descriptor in descriptors:
            os.close(descriptor)
        sock.send(str(answer).encode())


def _fork(request: Fork, descriptors: list[int], sock: socket.socket) -> int:
    """The worker's number, once its process group has it."""
    read, write = os.pipe()
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        sock.close()
        die_with_parent(server)
        os.setsid()
        os.close(write)
        _become(request, *descriptors[:2])
    os.close(write)
    os.read(read, 1)
    os.close(read)
    return pid


def _become(request: Fork, channel: int, errors: int) -> NoReturn:
    code = 1
    try:
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        os.close(errors)
        os.chdir(request.directory)
        os.environ.clear()
        os.environ.update(request.environment)
        sys.path[0] = request.directory
        sys.argv = [request.module, str(channel)]
        _name(request.module)
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _name(module: str) -> None:
    """What `ps` shows."""
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle

        setproctitle(f"{sys.executable} -m {module}")


def main() -> None:
    die_with_parent()
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    for name in sys.argv[2:]:
        with contextlib.suppress(ImportError):  # said by the worker that needs it
            importlib.import_module(name)
    gc.freeze()
    serve(sock)


if __name__ == "__main__":
    main()
