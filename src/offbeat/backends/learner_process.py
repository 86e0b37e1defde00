"""The learner behind a channel: a batch in, a published version out.

Weights and optimizer state of a version are synced to disk before it is announced; whether it counts is decided
by the run log alone, so a step that was not logged is simply done again from the version before.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from offbeat.backends.messages import Exported, ExportTo, LearnerHello, LearnerUp, StepDone, ToLearner, TrainOn
from offbeat.backends.sole_writer import sole_writer
from offbeat.backends.weights import Canary, publish, read_manifest, version_directory, weights_file
from offbeat.backends.worker import Link, set_threads, work
from offbeat.settings import settings_from


def main(link: Link) -> None:
    hello = link.next()
    assert isinstance(hello, LearnerHello)
    with sole_writer(Path(hello.run_directory)):
        _serve(link, hello)


def _serve(link: Link, hello: LearnerHello) -> None:
    settings = settings_from(hello.settings)
    set_threads(settings.run.threads)
    from offbeat.backends.alignment import attach_alignment
    from offbeat.learner.checkpoint import stored_weights
    from offbeat.learner.step import PolicyLearner

    run_directory = Path(hello.run_directory)
    manifest = read_manifest(run_directory, hello.version, hello.digest)
    learner = PolicyLearner.restore(
        run_directory / "policy",
        version_directory(run_directory, hello.version),
        settings,
        hello.version,
        stored=lambda version: stored_weights(weights_file(run_directory, version)),
        attach=attach_alignment,
    )
    prompt_ids, response_ids = manifest.canary.prompt_ids, manifest.canary.response_ids

    def canary() -> Canary:
        return Canary(prompt_ids, response_ids, tuple(learner.score(prompt_ids, response_ids)))

    link.send(LearnerUp(hello.version))
    while True:
        message: ToLearner = link.next()
        match message:
            case TrainOn():
                started = time.monotonic()
                report = learner.step(message.batch)
                stepped = time.monotonic()
                manifest = publish(run_directory, learner.version, learner.publish, canary)
                ended = time.monotonic()
                report = msgspec.structs.replace(
                    report, train_seconds=stepped - started, publish_seconds=ended - stepped
                )
                times = started - hello.origin, ended - hello.origin
                link.send(StepDone(learner.version, manifest.digest, report, *times))
            case ExportTo():
                learner.export(Path(message.directory))
                link.send(Exported(message.directory))


if __name__ == "__main__":
    work(main, ToLearner)
