"""A worker of a study: one cell a line on standard input, progress and the result as lines on standard output.

It computes with one thread, keeps nothing, and ends with its parent: when its input ends, or when nobody reads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import msgspec

from offbeat.errors import OffbeatError
from offbeat.studies.cell import Cell


def main(policy: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from offbeat.studies.measures import measure

    def tell(**message: object) -> None:
        try:
            print(json.dumps(message), flush=True)
        except BrokenPipeError:
            os._exit(1)

    for line in sys.stdin:
        cell = msgspec.json.decode(line, type=Cell)
        try:
            result = measure(cell, policy, lambda done, total: tell(done=done, total=total))
        except OffbeatError as error:
            tell(error=f"{type(error).__name__}: {error}")
            continue
        tell(result=msgspec.to_builtins(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
