"""A run directory: prepared aside and put in place whole, locked while a run uses it, taken up again by replay.

    DIR/run.sqlite  policy/  versions/  workers.log  report.html  model/

*Resume law*: the state of a run is the fold of its events; replaying them must give the very commands that were
recorded (the twin law), otherwise this offbeat is not the one that wrote the log and the run is refused.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from offbeat import __version__
from offbeat import events as e
from offbeat.backends.local import Died, LocalBackend, Name
from offbeat.backends.messages import Prepared, PrepareHello, Preparing, WorkerFailed
from offbeat.backends.weights import check_version, read_manifest
from offbeat.errors import RunDirectoryError, RunFailed, SettingsError, WeightsError
from offbeat.flow.plan import plan_from
from offbeat.flow.scheduler import Scheduler
from offbeat.live.export import has_model
from offbeat.live.runlog import RunLog
from offbeat.live.versions import VersionShelf
from offbeat.settings import Settings, settings_from

LOG_NAME = "run.sqlite"
WORKERS_LOG = "workers.log"
POLICY = "policy"
PREPARER = Name("preparer")


class OpenRun(NamedTuple):
    """Everything to go on from: the state after the last recorded event."""

    directory: Path
    settings: Settings
    log: RunLog
    scheduler: Scheduler
    shelf: VersionShelf
    session: int
    start: float
    lock: int


def create(directory: Path, settings: Settings, progress: Callable[[str, float], None]) -> None:
    """Prepare policy, version 0 and an empty log aside, then rename into place.

    Raises RunDirectoryError when the directory is taken, SettingsError and TaskError for bad input.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        remedy = "resume it with --resume" if (directory / LOG_NAME).exists() else "choose another directory"
        raise RunDirectoryError(f"--out {directory}: exists and is not empty; {remedy}")
    aside = directory.with_name(f".{directory.name}.preparing-{os.getpid()}")
    try:
        aside.mkdir(parents=True)
    except OSError as error:
        raise RunDirectoryError(f"--out {directory}: cannot be made ({error.strerror}); choose another") from None
    try:
        prepared = _prepare(aside, settings, progress)
        meta = {
            "offbeat_version": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": settings.model_dump_json(),
            "digest_0": prepared.digest,
            "parameters": str(prepared.parameters),
        }
        RunLog.create(aside / LOG_NAME, meta).close()
        aside.rename(directory)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _prepare(aside: Path, settings: Settings, progress: Callable[[str, float], None]) -> Prepared:
    threads = os.cpu_count() or 1
    backend = LocalBackend(aside / WORKERS_LOG, threads)
    try:
        backend.start(PREPARER, PrepareHello(str(aside), settings.model_dump(mode="json")))
        while True:
            for _, message in backend.poll(1.0):
                match message:
                    case Preparing():
                        progress(message.note, message.share)
                    case Prepared():
                        return message
                    case WorkerFailed(bad_input=True):
                        raise SettingsError(message.reason)
                    case Died():
                        words = _last_words(aside / WORKERS_LOG)
                        raise RunFailed(f"the policy could not be prepared: {message.how}{words}")
    finally:
        backend.close()


def _last_words(file: Path) -> str:
    lines = file.read_text(errors="replace").strip().splitlines()
    return f" ({lines[-1]})" if lines else ""


def take_up(directory: Path, wait: Callable[[str], None]) -> OpenRun:
    """Lock a run directory and replay its log. Raises RunDirectoryError when it cannot be taken up."""
    if not (directory / LOG_NAME).is_file():
        raise RunDirectoryError(f"run {directory}: holds no {LOG_NAME}; start one with --out {directory}")
    lock = _lock(directory, wait)
    log = RunLog.open(directory / LOG_NAME)
    log.check()
    settings = settings_from_json(log.meta("settings"))
    scheduler = Scheduler(plan_from(settings))
    digests = {0: log.meta("digest_0")}
    retired: list[int] = []
    session, last = 0, 0.0
    for seq, now, event, commands in log.events():
        if scheduler.handle(event, now) != commands:
            raise RunDirectoryError(
                f"run {directory}: event {seq} ({type(event).__name__}) leads to other commands than were recorded by"
                f" offbeat {log.meta('offbeat_version')}; resume it with that version"
            )
        last = now
        session += isinstance(event, e.Opened)
        if isinstance(event, e.Trained):
            digests[event.version] = event.digest
        retired += [command.version for command in commands if isinstance(command, e.Retire)]
    finished = scheduler.stopped is not None and scheduler.stopped.outcome == "finished"
    if not finished or not has_model(directory):
        _check_files(directory, digests, scheduler, finished)
    shelf = VersionShelf(directory, settings.run.keep_versions, digests, retired)
    shelf.discard_unlogged()
    return OpenRun(directory, settings, log, scheduler, shelf, session, last, lock)


def _check_files(directory: Path, digests: dict[int, str], scheduler: Scheduler, finished: bool) -> None:
    """Raise RunDirectoryError where files that training, or a finished run's export, needs to go on are missing or not
    what was written."""
    remedy = "put it back from a copy, or begin a new run"
    if not (directory / POLICY / "config.json").is_file():
        raise RunDirectoryError(f"run {directory}: {POLICY}/config.json is missing; {remedy}")
    for version in sorted(scheduler.live_versions):
        try:
            if version == scheduler.window.newest:
                check_version(directory, version, digests[version])
            elif not finished and scheduler.ledger.needs(version):
                read_manifest(directory, version, digests[version])
        except WeightsError as error:
            raise RunDirectoryError(f"run {directory}: {error}; {remedy}") from None


def settings_from_json(text: str) -> Settings:
    import json

    return settings_from(json.loads(text))


def _lock(directory: Path, wait: Callable[[str], None]) -> int:
    """An advisory lock that every worker inherits: it is free once the last process of an earlier run is gone."""
    handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    for patience in range(100):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if patience == 0:
                wait(f"{directory} is in use; waiting up to 10 s for its processes to end")
            _sleep()
    os.close(handle)
    raise RunDirectoryError(f"run {directory}: in use by another process; end that one first")


def _sleep() -> None:
    import time

    time.sleep(0.1)
