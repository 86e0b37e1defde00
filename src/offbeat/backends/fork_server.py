"""A process that has loaded the large libraries once and forks a run's workers, which share its memory.

    python -m offbeat.backends.fork_server DESCRIPTOR PARENT LIBRARY ...    for the process at the socket's other end
    ... where a LIBRARY may be `module:function`, to be called once
    ... or, where it is a listening socket, for each process that connects a server of its own

*Clean-fork invariant*: the server has no threads, no device and no foreign code in it, and keeps nothing open of a
worker; a worker finds the working directory, environment and descriptors of the process that asked for it. A server
ends with the process that it serves, and with it all its workers. Linux only. Knows no messages and no settings.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import resource
import runpy
import signal
import socket
import struct
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import msgspec
from setproctitle import getproctitle, setproctitle

from offbeat.backends.worker import die_with_parent
from offbeat.garbage import SELDOM

LARGEST = 1 << 17
"""Bytes of a request; a larger environment is not for this way."""
DESCRIPTORS = 8
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Run a module as a worker of the process `asker`. With it come its channel, the file for what it prints, and what
    it keeps open."""

    asker: int
    module: str
    directory: str
    environment: dict[str, str]


class Reap(msgspec.Struct, frozen=True, tag=True):
    """Wait for the end of a worker; its number may be given anew afterwards."""

    pid: int


def serve(sock: socket.socket) -> None:
    """Fork and reap as asked until the other side is gone."""
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


def listen(listener: socket.socket) -> NoReturn:
    """Serve all that connect, each by a server that is like the process it serves."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those servers
    me = os.getpid()
    while True:
        sock, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent(me)
            os.setsid()
            with contextlib.suppress(OSError):  # the asker has gone already
                _be_like(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
                serve(sock)
            os._exit(0)
        sock.close()


def _be_like(asker: int) -> None:
    """Its limits, its cores and its niceness, as a child of its own would have them."""
    for limit in _LIMITS:
        with contextlib.suppress(ValueError):
            resource.setrlimit(limit, resource.prlimit(asker, limit))
    os.sched_setaffinity(0, os.sched_getaffinity(asker))
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, asker))
    status = Path(f"/proc/{asker}/status").read_text()
    os.umask(int(status.partition("Umask:")[2].split()[0], 8))


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
        sys.path[:] = [request.directory, *_asked(request.environment), *_OWN_PATH]
        sys.argv = [request.module, str(channel)]
        setproctitle(title(request.module, request.asker))
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


def title(module: str, asker: int) -> str:
    """What `ps` shows of a worker."""
    return f"{sys.executable} -m {module} of process {asker}"


def _asked(environment: dict[str, str]) -> list[str]:
    """Where an interpreter would look for modules besides its own places."""
    return [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]


_OWN_PATH = [part for part in sys.path[1:] if part not in _asked(dict(os.environ))]


def main() -> None:
    die_with_parent(int(sys.argv[2]))
    getproctitle()  # it finds its place in memory now, before environments change
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    usual = gc.get_threshold()
    gc.set_threshold(*SELDOM)  # not never: what compiling leaves behind would be frozen and shared by all
    for name in sys.argv[3:]:
        module, _, function = name.partition(":")
        with contextlib.suppress(ImportError, OSError):  # said by the worker that needs it
            loaded = importlib.import_module(module)
            if function:
                getattr(loaded, function)()
    gc.freeze()
    gc.set_threshold(*usual)
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listen(sock)
    serve(sock)


if __name__ == "__main__":
    main()
