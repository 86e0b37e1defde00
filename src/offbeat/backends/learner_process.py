"""The learner behind a channel: a batch in, a published version out.

A version is announced when its weights and optimizer state are written and those of the version before it are on the
disk; whether it counts is decided by the run log alone, so a step that was not logged is simply done again.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from offbeat.backends.heap import Trimming
from offbeat.backends.messages import (
    Exported,
    ExportTo,
    LearnerHello,
    LearnerUp,
    StepDone,
    StepGoesOn,
    ToLearner,
    TrainOn,
)
from offbeat.backends.sole_writer import sole_writer
from offbeat.backends.weights import Canary, Manifest, Syncing, publish, read_manifest
from offbeat.backends.worker import Link, work
from offbeat.settings import settings_from

if TYPE_CHECKING:
    from offbeat.backends.learner_ranks import Leader

BEAT_SECONDS = 5.0


class Passes:
    """Counts the passes of a step and says so now and then: a step may take longer than a run may stand still."""

    def __init__(self, link: Link, iteration: int) -> None:
        self._link = link
        self._iteration = iteration
        self._made = 0
        self._said_at = time.monotonic()

    def made_one(self) -> None:
        self._made += 1
        now = time.monotonic()
        if now - self._said_at >= BEAT_SECONDS:
            self._said_at = now
            self._link.send(StepGoesOn(self._iteration, self._made))


def main(link: Link) -> None:
    hello = link.next()
    assert isinstance(hello, LearnerHello)
    processes = settings_from(hello.settings).learner.processes
    from offbeat.backends.learner_ranks import Leader, others, restored
    from offbeat.learner.warm_up import warm_up

    warm_up()  # before anybody waits for a sign of life
    with sole_writer(Path(hello.run_directory)):
        manifest = read_manifest(Path(hello.run_directory), hello.version, hello.digest)
        with others(hello, processes) as ranks:
            _serve(link, hello, manifest, Leader(restored(hello, ranks), ranks))


def _serve(link: Link, hello: LearnerHello, manifest: Manifest, learner: Leader) -> None:
    run_directory = Path(hello.run_directory)
    prompt_ids, response_ids = manifest.canary.prompt_ids, manifest.canary.response_ids

    def canary() -> Canary:
        return Canary(prompt_ids, response_ids, tuple(learner.score(prompt_ids, response_ids)))

    link.send(LearnerUp(hello.version))
    syncing = Syncing(run_directory)
    trimming = Trimming()
    syncing.begin(hello.version)  # whoever published it may have been ended meanwhile
    while True:
        message: ToLearner = link.next()
        match message:
            case TrainOn():
                started = time.monotonic()
                report = learner.step(message, Passes(link, learner.version).made_one)
                stepped = time.monotonic()
                manifest = publish(run_directory, learner.version, learner.publish, canary)
                syncing.finish()
                ended = time.monotonic()
                report = msgspec.structs.replace(
                    report, train_seconds=stepped - started, publish_seconds=ended - stepped
                )
                times = started - hello.origin, ended - hello.origin
                link.send(StepDone(learner.version, manifest.digest, report, *times))
                syncing.begin(learner.version)
                trimming.turn()
            case ExportTo():
                syncing.finish()
                learner.export(Path(message.directory))
                link.send(Exported(message.directory))


if __name__ == "__main__":
    work(main, ToLearner)
