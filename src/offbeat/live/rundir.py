"""A run directory: locked while a run uses it, taken up again by replay.

    DIR/run.sqlite  policy/  versions/  workers.log  report.html  model/

*Resume law*: the state of a run is the fold of its events; replaying them must give the very commands that were
recorded (the twin law), otherwise this offbeat is not the one that wrote the log and the run is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from offbeat import events as e
from offbeat.backends.weights import read_manifest, version_damage
from offbeat.errors import RunDirectoryError, SettingsError, WeightsError
from offbeat.flow.plan import plan_from
from offbeat.flow.scheduler import Scheduler
from offbeat.live.export import has_model
from offbeat.live.runlog import RunLog
from offbeat.live.versions import VersionShelf
from offbeat.locks import hold
from offbeat.settings import Settings, settings_from

LOG_NAME = "run.sqlite"
WORKERS_LOG = "workers.log"
POLICY = "policy"
LOCK_NAME = "lock"
LOCK_SECONDS = 10.0
"""What the workers of an earlier session, which inherit its lock, get to end."""


class OpenRun(NamedTuple):
    """Everything to go on from: the state after the last recorded event."""

    settings: Settings
    log: RunLog
    scheduler: Scheduler
    shelf: VersionShelf
    session: int
    start: float
    lock: int
    damage: str = ""
    """What is wrong with the files of the newest version, which can be made anew from the one before it."""


def take_up(directory: Path, wait: Callable[[str], None]) -> OpenRun:
    """Lock a run directory and replay its log. Raises RunDirectoryError when it cannot be taken up, holding nothing."""
    if not (directory / LOG_NAME).is_file():
        raise RunDirectoryError(f"run {directory}: holds no {LOG_NAME}; start one with --out {directory}")
    with ExitStack() as undo:
        words = f"{directory} is in use; waiting up to {LOCK_SECONDS:.0f} s for its processes to end"
        lock = hold(directory / LOCK_NAME, f"run {directory}", LOCK_SECONDS, lambda: wait(words))
        undo.callback(os.close, lock)
        log = RunLog.open(directory / LOG_NAME)
        undo.callback(log.close)
        log.check()
        opened = _replay(directory, log, lock)
        undo.pop_all()
        return opened


def _replay(directory: Path, log: RunLog, lock: int) -> OpenRun:
    settings = _settings(directory, log)
    scheduler = Scheduler(plan_from(settings))
    shelf = VersionShelf(directory, settings.run.keep_versions, log.meta("digest_0"))
    session, last = 0, 0.0
    for seq, now, event, commands in log.events():
        if scheduler.handle(event, now) != commands:
            raise RunDirectoryError(
                f"run {directory}: event {seq} ({type(event).__name__}) leads to other commands than were recorded by"
                f" offbeat {log.meta('offbeat_version')}; resume it with that version"
            )
        last = now
        session += isinstance(event, e.Opened)
        if isinstance(event, e.Trained | e.Rebuilt):
            shelf.publish(event.version, event.digest)
        for command in commands:
            if isinstance(command, e.Retire):
                shelf.forget(command.version)
    finished = scheduler.stopped is not None and scheduler.stopped.outcome == "finished"
    damage = ""
    if not finished or not has_model(directory):
        damage = _check_files(directory, shelf.digests, scheduler, finished)
    shelf.sweep()
    return OpenRun(settings, log, scheduler, shelf, session, last, lock, damage)


def _check_files(directory: Path, digests: dict[int, str], scheduler: Scheduler, finished: bool) -> str:
    """What is wrong with the newest version, where the one before it is whole and can replace it; empty for nothing.

    Raises RunDirectoryError where other files that training, or a finished run's export, needs to go on are missing or
    not what was written."""
    remedy = "put it back from a copy, or begin a new run"
    if not (directory / POLICY / "config.json").is_file():
        raise RunDirectoryError(f"run {directory}: {POLICY}/config.json is missing; {remedy}")
    newest = scheduler.window.newest
    for version in sorted(scheduler.live_versions - {newest}):
        try:
            if not finished and scheduler.ledger.needs(version):
                read_manifest(directory, version, digests[version])
        except WeightsError as error:
            raise RunDirectoryError(f"run {directory}: {error}; {remedy}") from None
    damage = version_damage(directory, newest, digests[newest])
    if damage and (newest == 0 or version_damage(directory, newest - 1, digests[newest - 1])):
        none = "there is no version before it" if newest == 0 else f"version {newest - 1} before it is no better"
        raise RunDirectoryError(f"run {directory}: {damage}; {none}; {remedy}")
    return damage


def _settings(directory: Path, log: RunLog) -> Settings:
    try:
        return settings_from(json.loads(log.meta("settings")))
    except (ValueError, TypeError, SettingsError) as error:
        raise RunDirectoryError(
            f"run {directory}: its settings cannot be read ({error}); resume it with offbeat"
            f" {log.meta('offbeat_version')}, or put {LOG_NAME} back from a copy"
        ) from None
