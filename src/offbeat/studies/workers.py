"""Cells to worker processes and results back: as many at a time as there are workers, in the order given.

*Nothing finished is lost*: a result is handed on before its worker gets the next cell. Workers are forked from one that
has loaded the libraries, in a session of their own, so Ctrl-C reaches only this process, which ends them. Knows no
study and no torch.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from offbeat.backends.local import DEATH_SECONDS, how_it_ended, launch_module
from offbeat.errors import RunFailed
from offbeat.studies.cell import Cell, Result

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CELL_PROCESS = "offbeat.studies.cell_process"
WORKERS_LOG = "workers.log"


class _Worker:
    def __init__(self, policy: Path, log: IO[bytes]) -> None:
        environment = os.environ | dict.fromkeys(THREADS, "1")
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.process = launch_module(CELL_PROCESS, theirs.fileno(), log.fileno(), environment)
        self.cell: Cell | None = None
        self._rest = b""
        self._say(json.dumps(str(policy)).encode())

    def lines(self) -> list[bytes]:
        """Whole lines that have come; an empty one where the process has ended."""
        try:
            data = self.channel.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            return [b""]
        *whole, self._rest = (self._rest + data).split(b"\n")
        return whole

    def begin(self, cell: Cell) -> None:
        self.cell = cell
        self._say(msgspec.json.encode(cell))

    def _say(self, line: bytes) -> None:
        with suppress(ConnectionError):  # it has ended, which is heard in its turn
            self.channel.sendall(line + b"\n")

    def how_it_ended(self) -> str:
        self.process.await_end(DEATH_SECONDS)
        return how_it_ended(self.end())

    def end(self) -> int:
        self.channel.close()
        if self.process.returncode is None:
            self.process.kill()
        return self.process.wait()


def run_cells(
    cells: Sequence[Cell],
    policy: Path,
    count: int,
    log: Path,
    done: Callable[[Cell, Result], None],
    progress: Callable[[Cell, int, int], None],
) -> None:
    """Run all cells on `count` processes; `done` hears every result, `progress` the steps of cells under way.

    Raises RunFailed, naming the cell, where a part refuses or a worker dies; all workers are gone afterwards.
    """
    waiting = list(cells)[::-1]
    workers: list[_Worker] = []
    with log.open("ab") as output, selectors.DefaultSelector() as selector:
        try:
            for _ in range(min(count, len(waiting))):
                worker = _Worker(policy, output)
                workers.append(worker)
                worker.begin(waiting.pop())
                selector.register(worker.channel, selectors.EVENT_READ, worker)
            while selector.get_map():
                for key, _ in selector.select():
                    worker = key.data
                    ended = [_finished(worker, line, log, done, progress) for line in worker.lines()]
                    if not any(ended):
                        continue
                    if waiting:
                        worker.begin(waiting.pop())
                    else:
                        selector.unregister(worker.channel)
        finally:
            for worker in workers:
                worker.end()


def _finished(
    worker: _Worker,
    line: bytes,
    log: Path,
    done: Callable[[Cell, Result], None],
    progress: Callable[[Cell, int, int], None],
) -> bool:
    """Take up one line; True where it ends the worker's cell."""
    cell = worker.cell
    assert cell is not None
    if not line:
        raise RunFailed(
            f"cell {cell.name}: its process ended by {worker.how_it_ended()}; see {log}, then go on with --out"
        )
    message = json.loads(line)
    if "error" in message:
        raise RunFailed(f"cell {cell.name}: {message['error']}")
    if "result" not in message:
        progress(cell, message["done"], message["total"])
        return False
    done(cell, msgspec.convert(message["result"], Result))
    return True
