"""The newest version made anew where its files are damaged: the version before it learns the same batch again.

*Fallback law*: nothing is consumed twice. The batch of the damaged version is consumed, and its effect was only in the
files that are gone; made anew, it is in the weights once. The run log says so (`Rebuilt`), with the digest that counts
from then on: where the learner's arithmetic repeats itself it is the announced one. A rebuilding that is killed leaves
what it found, a damaged version, and is done by the next resume.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from offbeat.backends.backend import Backend
from offbeat.backends.local import Died
from offbeat.backends.messages import LearnerHello, StepDone, TrainOn
from offbeat.errors import RunDirectoryError
from offbeat.events import Rebuilt, Train
from offbeat.live.export import LEARNER
from offbeat.live.rundir import OpenRun
from offbeat.live.runlog import RunLog


def rebuild_newest(directory: Path, opened: OpenRun, backend: Backend, say: Callable[[str], None]) -> None:
    """Make the newest version again and log it. Raises RunDirectoryError where that fails."""
    newest = opened.scheduler.window.newest
    before, announced = newest - 1, opened.shelf.digests[newest]
    say(f"{directory}: {opened.damage}; falling back to version {before} and learning its batch again")
    hello = LearnerHello(
        str(directory), opened.settings.model_dump(mode="json"), before, opened.shelf.digests[before], origin=0.0
    )
    backend.start(LEARNER, hello)
    train = _train(opened.log, before)
    batch = opened.log.batch(before, train.group_ids, train.attempts)
    backend.send(LEARNER, TrainOn(batch, train.projection, train.rate))
    done = _done(directory, backend, opened.settings.run.stall_seconds)
    backend.end(LEARNER)
    event = Rebuilt(newest, done.digest, opened.damage)
    opened.log.record(event, opened.start, opened.scheduler.handle(event, opened.start))
    opened.shelf.publish(newest, done.digest)
    same = "bit for bit what it was" if done.digest == announced else "not bit for bit what it was"
    say(f"{directory}: version {newest} is there again, {same}")


def _train(log: RunLog, iteration: int) -> Train:
    """The last Train command of an iteration."""
    trains = (c for _, _, _, commands in log.events() for c in commands if isinstance(c, Train))
    return [command for command in trains if command.iteration == iteration][-1]


def _done(directory: Path, backend: Backend, seconds: float) -> StepDone:
    """The learner's answer; it may take any time in which it says that it goes on."""
    heard_at, reason = time.monotonic(), ""
    while not reason:
        for _, message in backend.poll(1.0):
            heard_at = time.monotonic()
            if isinstance(message, StepDone):
                return message
            if isinstance(message, Died):
                reason = message.reason
        if time.monotonic() - heard_at > seconds:
            reason = f"the learner said nothing for {seconds:.0f} s"
    raise RunDirectoryError(
        f"run {directory}: its newest version is damaged and could not be made again ({reason}); mend that and resume"
    )
