"""All parts of a run, side by side on the cores there are: start, watch, stop, go on.

*A run's numbers depend on its settings alone, never on how many processes shared the work.* One part trains in this
process; several train in processes of their own, each of one torch thread, that end with the window they are in
when told to, and at once when their parent is gone. One process at a time may train in a directory: it holds
`lock`.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

from offbeat.errors import OffbeatError, RunFailed
from offbeat.locks import hold
from offbeat.market.learners.runfile import read_head
from offbeat.market.learners.settings import study_from

Said = Callable[[int, int], None]
"""(rounds done, rounds in all), summed over parts."""
PAUSE = 0.2
"""Seconds between two looks at the parts."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """The right to train in `directory`. Raises RunDirectoryError where another process has it."""
    held = hold(directory / "lock", str(directory))
    try:
        yield
    finally:
        os.close(held)


def train(directory: Path, said: Said, cores: int | None = None) -> None:
    """Train every part that is not finished to its end. Raises RunFailed where a part's process dies.

    KeyboardInterrupt ends it; finished windows are kept.
    """
    study = study_from(read_head(directory)["settings"])
    waiting = list(range(study.run.parts))
    rounds = study.rounds * study.run.windows
    workers = min(cores or len(os.sched_getaffinity(0)), len(waiting))
    with locked(directory):
        for part in waiting:
            _progress_file(directory, part).unlink(missing_ok=True)
        if workers == 1:
            for part in waiting:
                train_part(directory, part, lambda done, part=part: said(part * rounds + done, len(waiting) * rounds))  # type: ignore[misc]
            return
        spawn = multiprocessing.get_context("spawn")
        running: dict[int, BaseProcess] = {}
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    part = waiting.pop(0)
                    running[part] = spawn.Process(target=_child, args=(str(directory), part, os.getpid()), daemon=True)
                    running[part].start()
                time.sleep(PAUSE)
                said(sum(_progress(directory, part) for part in range(study.run.parts)), study.run.parts * rounds)
                for part in [part for part, process in running.items() if not process.is_alive()]:
                    process = running.pop(part)
                    if process.exitcode != 0:
                        how = f"part {part} ended with code {process.exitcode}"
                        raise RunFailed(f"{how}; finished windows are kept: --resume {directory}")
            said(study.run.parts * rounds, study.run.parts * rounds)
        finally:
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.join()
            for part in range(study.run.parts):
                _progress_file(directory, part).unlink(missing_ok=True)


def train_part(directory: Path, part: int, said: Callable[[int], None]) -> None:
    """Train one part to its end, checkpoint by checkpoint, from wherever its file is."""
    import torch

    from offbeat.market.learners.checkpoint import Spent, load, save
    from offbeat.market.learners.training import Training

    torch.set_num_threads(1)
    training = Training(study_from(read_head(directory)["settings"]), part)
    began, worked = time.perf_counter(), time.process_time()
    spent = load(training, directory)
    said(training.window * training.rounds)
    saved = began
    while not training.over:
        training.train_window(said)
        now = time.perf_counter()
        if training.over or now - saved >= SAVE_EVERY:
            busy = time.process_time() - worked
            save(training, directory, Spent(spent.seconds + now - began, spent.processor + busy))
            saved = now


SAVE_EVERY = 10.0
"""Least seconds between two checkpoints."""


def _child(directory: str, part: int, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    _keep_memory()
    told = 0.0

    def said(done: int) -> None:
        nonlocal told
        if os.getppid() != parent:
            os._exit(1)
        if (now := time.monotonic()) - told > PAUSE:
            told = now
            _progress_file(Path(directory), part).write_text(str(done))

    try:
        train_part(Path(directory), part, said)
    except OffbeatError as error:
        print(f"offbeat: part {part}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _keep_memory() -> None:
    """Ask glibc to keep freed memory: activations of the same size come back every step (a fifth of the time
    without).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in ((-3, 1 << 30), (-1, (1 << 31) - 1)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            mallopt(parameter, value)


def _progress_file(directory: Path, part: int) -> Path:
    return directory / f"part-{part:03d}.progress"


def _progress(directory: Path, part: int) -> int:
    try:
        return int(_progress_file(directory, part).read_text())
    except (OSError, ValueError):
        return 0
