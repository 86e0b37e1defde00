"""The composition root: the only file that knows every room. Settings and a directory in, a finished run out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from offbeat import interrupts
from offbeat.backends.backend import Backend
from offbeat.backends.local import LocalBackend
from offbeat.backends.messages import LearnerHello
from offbeat.backends.parcels import sweep_parcels
from offbeat.backends.vllm.interpreter import interpreters
from offbeat.events import Stop
from offbeat.live import rundir
from offbeat.live.episode_world import EpisodeWorld
from offbeat.live.export import MODEL, export_model, has_model
from offbeat.live.preparation import create
from offbeat.live.prompts import PromptBook
from offbeat.live.rebuild import rebuild_newest
from offbeat.live.world import LiveWorld
from offbeat.loop import Observer, run
from offbeat.models.prompts import check_exam
from offbeat.settings import Settings, Where
from offbeat.task_settings import EPISODIC
from offbeat.tasks import make_task


def start(directory: Path, settings: Settings, progress: Callable[[str, float], None]) -> None:
    """Prepare a new run directory: the policy with its warm start, version 0, an empty log.

    Where there is a cluster it is joined first: without it there would be no run.
    """
    interpreters(settings.rollout)
    if settings.run.backend == "ray":
        from offbeat.backends.ray_cluster import connect

        connect(settings)
    create(directory, settings, progress)


def go_on(
    directory: Path,
    make_observers: Callable[[rundir.OpenRun], Sequence[Observer]],
    say: Callable[[str], None],
    where: Where = Where(),
) -> Stop:
    """Take a run up where its log ends and go on until it stops; a finished run gives its Stop again.

    Where the newest version's files are damaged, it is made anew first, from the version before it.
    A run that finishes leaves its policy as a Hugging Face directory in DIR/model; one that could not gets it now.
    Raises OffbeatError for what no restart mends; the run directory can be resumed afterwards.
    """
    opened = rundir.take_up(directory, say)
    stop = opened.scheduler.stopped
    with ExitStack() as closing:
        closing.callback(os.close, opened.lock)
        closing.callback(opened.log.close)
        closing.callback(sweep_parcels, directory)
        settings = where.of(opened.settings)
        opened = opened._replace(settings=settings)
        backend = _backend(directory, settings, opened.lock, say)
        closing.callback(backend.close)
        if opened.damage:
            rebuild_newest(directory, opened, backend, say)
        if stop is None or stop.outcome != "finished":
            stop = _train(directory, opened, backend, make_observers(opened))
        elif has_model(directory):
            return stop
        else:
            say(f"{directory} has finished, but {MODEL}/ is missing: writing it")
        if stop.outcome == "finished":
            export_model(directory, backend, _learner_hello(directory, opened), settings.run.stall_seconds)
        return stop


def _backend(directory: Path, settings: Settings, lock: int, say: Callable[[str], None]) -> Backend:
    printed = directory / rundir.WORKERS_LOG
    local = LocalBackend(printed, settings.run.threads, (lock,), interpreters(settings.rollout))
    if settings.run.backend == "local":
        return local
    from offbeat.backends.ray_cluster import connect

    cluster = connect(settings)
    from offbeat.backends.ray_backend import RayBackend

    return RayBackend(cluster, local, directory, settings.schedule.outstanding_limit, printed, say)


def _train(directory: Path, opened: rundir.OpenRun, backend: Backend, observers: Sequence[Observer]) -> Stop:
    settings = opened.settings
    prompts = PromptBook(make_task(settings.task, settings.run.seed), directory / "policy", settings.task.held_out)
    check_exam(prompts.held_out, settings.rollout)
    kind = EpisodeWorld if settings.task.name in EPISODIC else LiveWorld
    world = kind(directory, settings, opened.log, backend, prompts, opened.shelf, opened.session, opened.start)
    world.start()
    with interrupts.asked(world.ask_to_stop):
        return run(world, opened.scheduler, opened.log, observers)


def _learner_hello(directory: Path, opened: rundir.OpenRun) -> LearnerHello:
    newest = opened.scheduler.window.newest
    dump = opened.settings.model_dump(mode="json")
    return LearnerHello(str(directory), dump, newest, opened.shelf.digests[newest], origin=0.0)
