"""What every worker begins and ends with, whatever carries its channel.

A worker process lives as long as its parent: the kernel ends it when the parent dies, and the end of its channel does
the same where the kernel cannot. A worker answers a failure it can name with WorkerFailed; everything else it prints.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from offbeat.backends.channel import Channel
from offbeat.backends.messages import WorkerFailed
from offbeat.errors import OffbeatError, SettingsError, TaskError

_PR_SET_PDEATHSIG = 1


class Link:
    """A worker's blocking view of its channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._ready: list[Any] = []

    def send(self, message: Any) -> None:
        self.channel.send(message)

    def poll(self, seconds: float | None) -> list[Any]:
        """Messages that arrive within `seconds` (None: wait for one), after those `next` has left over. Ends the
        process when the parent is gone."""
        if self._ready:
            left, self._ready = self._ready, []
            return left
        read, write, _ = select.select(
            [self.channel], [self.channel] if self.channel.wants_to_write else [], [], seconds
        )
        if write:
            self.channel.flush()
        messages = self.channel.receive() if read else []
        if self.channel.closed:
            os._exit(0)
        return messages

    def next(self) -> Any:
        """The next single message."""
        while not self._ready:
            self._ready = self.poll(None)
        return self._ready.pop(0)

    def drain(self) -> None:
        """Wait until all that was sent has left."""
        while self.channel.wants_to_write:
            select.select([], [self.channel], [])
            self.channel.flush()


def work(main: Callable[[Link], None], incoming: Any) -> None:
    """Run `main` on the channel whose file descriptor is the last argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    sock = socket.socket(fileno=int(sys.argv[-1]))
    os.register_at_fork(after_in_child=sock.close)  # what foreign code forks must not hide the end of this process
    sys.exit(attend(main, Link(Channel(sock, incoming))))


def attend(main: Callable[[Link], None], link: Link) -> int:
    """Run `main` until it ends; an end that can be named is said. The exit code."""
    try:
        main(link)
        return 0
    except OffbeatError as error:
        link.send(WorkerFailed(str(error), bad_input=isinstance(error, SettingsError | TaskError)))
        link.drain()
        return error.exit_code
    except OSError as error:
        link.send(WorkerFailed(f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")))
        link.drain()
        return 1


def die_with_parent(parent: int | None = None) -> None:
    """Let the kernel end this process with its parent; at once where `parent` was it and has gone already."""
    parent = parent or os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def environment(threads: int) -> dict[str, str]:
    """What a worker finds in its environment, besides what its parent has."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1"),
    }


def set_threads(threads: int) -> None:
    """One compute thread per process unless the settings say otherwise: two per core collapse."""
    import torch

    torch.set_num_threads(threads)
