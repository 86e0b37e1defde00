"""Worker processes on this machine: start, talk, notice the end, replace.

A worker that is replaced is ended first and its channel dropped, so nothing it still says is heard (zombie rule).
With a worker ends every process it started (its process group). Every worker that writes into the run directory
inherits the run's lock, so it stays locked until the last of them is gone; scorer and agents, where foreign code may
start processes that outlive everything, do not. This file knows processes and messages, not what they mean.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from offbeat.backends.agent_messages import FromAgents
from offbeat.backends.channel import Channel
from offbeat.backends.forking import Forked, fork_server
from offbeat.backends.messages import FromChecker, FromLearner, FromPreparer, FromRollout, FromScorer, WorkerFailed
from offbeat.backends.worker import environment

MODULES = {
    "rollout": ("offbeat.backends.rollout_process", FromRollout),
    "learner": ("offbeat.backends.learner_process", FromLearner),
    "scorer": ("offbeat.backends.scorer_process", FromScorer),
    "agents": ("offbeat.agents.process", FromAgents),
    "checker": ("offbeat.backends.checker_process", FromChecker),
    "preparer": ("offbeat.backends.preparer_process", FromPreparer),
}
FORKED = {"rollout", "learner", "preparer"}
"""Those that need the large libraries; foreign code runs in the others."""
LOCKLESS = {"checker", "scorer", "agents"}
DEATH_SECONDS = 2.0
"""What a worker that has closed its channel gets to end by itself and say how."""


class Name(NamedTuple):
    """Which worker: its kind and, for rollout processes, its number."""

    kind: str
    number: int = 0


class Died(msgspec.Struct, frozen=True):
    """A worker ended by itself or by somebody else's hand: `how`, and the file with what it printed. `left`: with its
    machine."""

    how: str
    printed: str = ""
    left: bool = False

    @property
    def reason(self) -> str:
        return self.how + (f"; its last words are in {self.printed}" if self.printed else "")


class Spawned(subprocess.Popen[bytes]):
    """A worker in a new interpreter."""

    def await_end(self, seconds: float) -> None:
        """Wait for its end, but leave it to be waited for: until then its process group keeps its number."""
        deadline = time.monotonic() + seconds
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() >= deadline:
                return
            time.sleep(0.01)


class Worker:
    def __init__(self, process: Spawned | Forked, channel: Channel) -> None:
        self.process = process
        self.channel = channel
        self.failure = ""


class LocalBackend:
    """Workers by name. `poll` returns what they said, in order of arrival, and who died."""

    def __init__(
        self,
        errors: Path | None,
        threads: int,
        keep_open: tuple[int, ...] = (),
        pythons: Mapping[str, str] | None = None,
    ) -> None:
        """`pythons` are the interpreters of workers that live in another environment, by kind."""
        self.workers: dict[Name, Worker] = {}
        self._errors = errors
        self._threads = threads
        self._keep_open = keep_open
        self._pythons = pythons or {}
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)

    def start(self, name: Name, hello: msgspec.Struct) -> None:
        """Start a worker, ending the one of the same name first."""
        self.end(name)
        ours, theirs = socket.socketpair()
        environ = os.environ | environment(self._threads)
        kept = () if name.kind in LOCKLESS else self._keep_open
        with theirs, open(self._errors or os.devnull, "ab") as errors:
            foreign = self._pythons.get(name.kind)
            process = launch(name.kind, theirs.fileno(), errors.fileno(), environ, kept, foreign)
        worker = Worker(process, Channel(ours, MODULES[name.kind][1]))
        self.workers[name] = worker
        self._selector.register(ours, selectors.EVENT_READ, name)
        self.send(name, hello)

    def send(self, name: Name, message: msgspec.Struct) -> None:
        """Nothing happens when the worker is gone: its death is on its way."""
        worker = self.workers.get(name)
        if worker is not None and not worker.channel.closed:
            worker.channel.send(message)
            self._watch_writes(name, worker)

    def end(self, name: Name) -> None:
        """End a worker at once, and all that it started; nothing more is heard of it."""
        worker = self.workers.pop(name, None)
        if worker is None:
            return
        self._selector.unregister(worker.channel.sock)
        worker.channel.close()
        end_group(worker.process)

    def end_all(self) -> None:
        for name in list(self.workers):
            self.end(name)

    def wake(self) -> None:
        """Let a `poll` under way return; safe in a signal handler."""
        os.write(self._wake_write, b".")

    def poll(self, seconds: float) -> list[tuple[Name, Any]]:
        """Wait up to `seconds` for messages or deaths."""
        heard: list[tuple[Name, Any]] = []
        for key, mask in self._selector.select(max(0.0, seconds)):
            name = key.data
            if name is None:
                os.read(self._wake_read, 4096)
                continue
            worker = self.workers.get(name)
            if worker is None:
                continue
            if mask & selectors.EVENT_WRITE:
                worker.channel.flush()
                self._watch_writes(name, worker)
            for message in worker.channel.receive():
                if isinstance(message, WorkerFailed):
                    worker.failure = message.reason
                heard.append((name, message))
            if worker.channel.closed:
                heard.append((name, self._died(name, worker)))
        return heard

    def _watch_writes(self, name: Name, worker: Worker) -> None:
        if worker.channel.closed:
            return
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.channel.wants_to_write else 0)
        self._selector.modify(worker.channel.sock, mask, name)

    def _died(self, name: Name, worker: Worker) -> Died:
        worker.process.await_end(DEATH_SECONDS)
        self.end(name)
        code = worker.process.wait()
        if worker.failure:
            return Died(worker.failure)
        printed = str(self._errors) if self._errors and code > 0 else ""
        return Died(f"the {name.kind} process ended by {how_it_ended(code)}", printed)

    def close(self) -> None:
        self.end_all()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)


def launch(
    kind: str,
    channel: int,
    errors: int,
    environ: dict[str, str],
    kept: tuple[int, ...] = (),
    foreign: str | None = None,
) -> Spawned | Forked:
    """A worker of this process, with its end of a channel, a file for what it prints, and what it keeps open: forked
    where it needs the large libraries, else in a new interpreter, a `foreign` one where that lives elsewhere.

    It lives no longer than the thread that starts it.
    """
    module, _ = MODULES[kind]
    return launch_module(module, channel, errors, environ, kept, kind in FORKED, foreign)


def launch_module(
    module: str,
    channel: int,
    errors: int,
    environ: dict[str, str],
    kept: tuple[int, ...] = (),
    forked: bool = True,
    foreign: str | None = None,
) -> Spawned | Forked:
    """Run a module of offbeat whose last argument is the number of its channel."""
    server = fork_server() if forked and foreign is None else None
    if server is not None:
        with contextlib.suppress(OSError):  # it has died, or the environment is too large for it
            return server.fork(module, environ, channel, errors, kept)
    return Spawned(
        [*python_of(module, foreign), str(channel)],
        pass_fds=(channel, *kept),
        stdin=subprocess.DEVNULL,
        stdout=errors,
        stderr=errors,
        env=environ,
        start_new_session=True,
    )


def end_group(process: Spawned | Forked) -> int:
    """End a worker's process at once, and all that it started; how it ended, as `subprocess` counts."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so the number is still this group's
    return process.wait()


def how_it_ended(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def python_of(module: str, foreign: str | None) -> list[str]:
    """The command that runs a module of offbeat: here, or by a `foreign` interpreter that has no offbeat of its own."""
    if foreign is None:
        return [sys.executable, "-m", module]
    return [foreign, "-P", str(Path(__file__).with_name("foreign_python.py")), module]
