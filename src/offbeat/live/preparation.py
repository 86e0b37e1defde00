"""A new run directory: prepared beside its place and put there whole, or nothing is written.

    .offbeat-preparing-1f0c3a9b/  becomes  DIR/run.sqlite  policy/  versions/  workers.log  lock

Only a locked directory has such a name, so one that nobody locks is what a killed preparation left: the next one
beside it sweeps it. The user's code is called in the checker alone and timed here. This file knows no running run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import msgspec

from offbeat import __version__
from offbeat.backends.forking import fork_server
from offbeat.backends.local import Died, LocalBackend, Name
from offbeat.backends.messages import (
    Checked,
    CheckHello,
    ForeignCall,
    Prepared,
    PrepareHello,
    Preparing,
    WorkerFailed,
)
from offbeat.durable import put_in_place, sync
from offbeat.errors import RunDirectoryError, RunFailed, SettingsError, TaskError
from offbeat.live.rundir import LOCK_NAME, LOG_NAME, WORKERS_LOG
from offbeat.live.runlog import RunLog
from offbeat.settings import Settings

CHECKER, PREPARER = Name("checker"), Name("preparer")
PREFIX = ".offbeat-preparing-"

Progress = Callable[[str, float], None]
Answer: TypeAlias = Checked | Prepared


def create(directory: Path, settings: Settings, progress: Progress) -> None:
    """Prepare policy, version 0 and an empty log aside, then rename into place.

    Raises RunDirectoryError when the directory is taken or cannot be made, SettingsError and TaskError for bad input.
    """
    try:
        place = _free(directory)
        made = [parent for parent in place.parents if not parent.exists()]
        with contextlib.ExitStack() as undo:
            undo.callback(_remove_empty, made)
            aside, lock = undo.enter_context(_aside(place.parent))
            prepared = prepare(aside, settings, progress, lock)
            meta = {
                "offbeat_version": __version__,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "settings": settings.model_dump_json(),
                "digest_0": prepared.digest,
                "parameters": str(prepared.parameters),
            }
            RunLog.create(aside / LOG_NAME, meta).close()
            _put(aside, place, directory)
            for parent in made:
                sync(parent.parent)
    except OSError as error:
        reason = error.strerror or error
        raise RunDirectoryError(f"--out {directory}: cannot be made ({reason}); choose another directory") from None


def _free(directory: Path) -> Path:
    """Where the run will lie. Raises RunDirectoryError where something does, OSError for no path."""
    place = Path(os.path.realpath(directory))
    if not place.exists():
        return place
    if not place.is_dir() or any(place.iterdir()):
        remedy = "resume it with --resume" if (place / LOG_NAME).exists() else "choose another directory"
        raise RunDirectoryError(f"--out {directory}: exists and is not empty; {remedy}")
    if place == Path.cwd() or place.is_mount():
        raise RunDirectoryError(
            f"--out {directory}: a run is put in place whole, which the current directory or a mounted disk cannot be;"
            f" name a directory in it, e.g. --out {directory / 'run'}"
        )
    return place


def _put(aside: Path, place: Path, directory: Path) -> None:
    try:
        put_in_place(aside, place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise RunDirectoryError(
            f"--out {directory}: another command made it meanwhile; choose another directory"
        ) from None


def _remove_empty(directories: list[Path]) -> None:
    """Those that hold nothing, the deepest first."""
    with contextlib.suppress(OSError):
        for directory in directories:
            directory.rmdir()


@contextlib.contextmanager
def _aside(parent: Path) -> Iterator[tuple[Path, int]]:
    """A new directory in `parent` and the descriptor of its lock; what is still there at the end is removed."""
    parent.mkdir(parents=True, exist_ok=True)
    _sweep(parent)
    token = secrets.token_hex(4)
    aside = parent / f".{token}"
    aside.mkdir()
    try:
        lock = os.open(aside / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            aside = aside.rename(parent / f"{PREFIX}{token}")
            yield aside, lock
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Remove what preparations left that are no more."""
    for left in parent.glob(f"{PREFIX}*"):
        try:
            lock = os.open(left / LOCK_NAME, os.O_RDWR)
        except FileNotFoundError:  # swept half
            shutil.rmtree(left, ignore_errors=True)
            continue
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(lock)


def prepare(aside: Path, settings: Settings, progress: Progress, lock: int) -> Prepared:
    """Run the checker and then the preparer on `aside`. Raises SettingsError, TaskError for a call that takes too
    long, and RunFailed."""
    dump = settings.model_dump(mode="json")
    backend = LocalBackend(aside / WORKERS_LOG, os.cpu_count() or 1, keep_open=(lock,))
    try:
        fork_server()  # loads libraries while prompts and reward are checked
        _run(backend, CHECKER, CheckHello(dump), progress, aside)
        prepared = _run(backend, PREPARER, PrepareHello(str(aside), dump), progress, aside)
        assert isinstance(prepared, Prepared)
        return prepared
    finally:
        backend.close()


def _run(backend: LocalBackend, name: Name, hello: msgspec.Struct, progress: Progress, aside: Path) -> Answer:
    """Start a worker and hear it until it says Checked or Prepared."""
    deadline, complaint = math.inf, ""
    backend.start(name, hello)
    while True:
        heard = backend.poll(min(1.0, deadline - time.monotonic()))
        now = time.monotonic()
        for _, message in heard:
            match message:
                case ForeignCall():
                    deadline, complaint = now + message.seconds, message.complaint
                case Preparing():
                    deadline = math.inf
                    progress(message.note, message.share)
                case Checked() | Prepared():
                    backend.end(name)
                    return message
                case WorkerFailed(bad_input=True):
                    raise SettingsError(message.reason)
                case Died():
                    words = _last_words(aside / WORKERS_LOG)
                    raise RunFailed(f"the policy could not be prepared: {message.how}{words}")
        if now >= deadline:
            raise TaskError(complaint)


def _last_words(file: Path) -> str:
    lines = file.read_text(errors="replace").strip().splitlines()
    return f" ({lines[-1]})" if lines else ""
