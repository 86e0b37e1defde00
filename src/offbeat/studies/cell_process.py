"""A worker of a study: the start policy, then one cell a line on its channel; progress and results as lines back.

It computes with one thread, keeps nothing, and ends with its parent: when its input ends, or when nobody reads.
"""

from __future__ import annotations

import gc
import json
import signal
import socket
import sys
from pathlib import Path

import msgspec

from offbeat.backends.heap import trim_heap
from offbeat.errors import OffbeatError
from offbeat.studies.cell import Cell


def main(channel: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from offbeat.studies.measures import measure

    def tell(**message: object) -> None:
        try:
            channel.sendall(json.dumps(message).encode() + b"\n")
        except ConnectionError:
            sys.exit(1)

    lines = channel.makefile("rb")
    policy = Path(json.loads(lines.readline()))
    for line in lines:
        cell = msgspec.json.decode(line, type=Cell)
        try:
            result = measure(cell, policy, lambda done, total: tell(done=done, total=total))
            tell(result=msgspec.to_builtins(result))
        except OffbeatError as error:
            tell(error=f"{type(error).__name__}: {error}")
        gc.collect()  # engine and learner of a cell refer to each other and hold some 250 MB
        trim_heap()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[-1])))
