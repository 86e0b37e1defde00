"""A newest version whose files are damaged is made anew from the one before it, with the batch that made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offbeat import events as e
from offbeat.backends.local import Died
from offbeat.backends.messages import LearnerHello, StepDone, StepGoesOn, TrainOn
from offbeat.errors import RunDirectoryError
from offbeat.flow.plan import plan_from
from offbeat.flow.scheduler import Scheduler
from offbeat.live.export import LEARNER
from offbeat.live.rebuild import rebuild_newest
from offbeat.live.rundir import OpenRun
from offbeat.live.runlog import RunLog
from offbeat.live.versions import VersionShelf
from offbeat.records import Batch
from tests.live.conftest import Puppets, settings
from tests.report.editable_run import step_report


class Learner(Puppets):
    """Answers a batch as `says`, one message a poll."""

    def __init__(self, *says: Any) -> None:
        super().__init__()
        self.says = list(says)

    def end(self, name: Any) -> None:
        self.workers.pop(name)

    def poll(self, seconds: float) -> list[Any]:
        return [(LEARNER, self.says.pop(0))]


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    """A run at version 2, of which version 2 is damaged; what counts of it is its last Train of iteration 1."""
    chosen = settings()
    log = RunLog.create(tmp_path / "run.sqlite", {})
    rng: Any = __import__("random").Random(0)
    report = step_report(1, 8, [0.0, 1.0], chosen, rng)
    log.record(e.LearnerReady(1), 1.0, [e.Train(1, (7,), ((0, 0),))])
    log.record(e.LearnerReady(1), 2.0, [e.Train(1, (7,), ((0, 3),))])
    log.record(e.Trained(2, "two", report, 2.0, 3.0), 3.0, [e.Train(2, (8,), ((0, 0),))])
    scheduler = Scheduler(plan_from(chosen))
    scheduler.window.newest = 2
    shelf = VersionShelf(tmp_path, 2, "zero")
    shelf.publish(1, "one")
    shelf.publish(2, "two")
    log.batch = lambda iteration, groups, attempts: Batch(iteration, (groups, attempts))  # type: ignore
    yield OpenRun(chosen, log, scheduler, shelf, 1, 3.0, -1, "version 2 is damaged")
    log.close()


def done(opened: OpenRun, digest: str) -> StepDone:
    rng: Any = __import__("random").Random(0)
    return StepDone(2, digest, step_report(1, 8, [0.0, 1.0], opened.settings, rng), 0.0, 1.0)


@pytest.mark.parametrize(("digest", "words"), [("two", "bit for bit what it was"), ("other", "not bit for bit")])
def test_the_version_before_learns_the_consumed_batch_again_and_the_log_says_so(
    opened: OpenRun, tmp_path: Path, digest: str, words: str
) -> None:
    said: list[str] = []
    learner: Any = Learner(StepGoesOn(1, 4), done(opened, digest))
    rebuild_newest(tmp_path, opened, learner, said.append)
    (_, hello), (_, order) = [("hello", learner.started[0]), *learner.sent]
    assert isinstance(order, TrainOn)
    assert order.batch == Batch(1, ((7,), [(0, 3)])) or order.batch == Batch(1, ((7,), ((0, 3),)))  # type: ignore
    assert hello == LEARNER
    assert [event for *_, event, _ in opened.log.events()][-1] == e.Rebuilt(2, digest, "version 2 is damaged")
    assert opened.shelf.digests[2] == digest
    assert learner.workers == {}
    assert "version 2 is damaged; falling back to version 1" in said[0]
    assert words in said[1]


def test_it_begins_at_the_version_before(opened: OpenRun, tmp_path: Path) -> None:
    learner: Any = Learner(done(opened, "two"))
    kept: list[LearnerHello] = []
    learner.start = lambda name, hello: (kept.append(hello), learner.workers.update({name: hello}))
    rebuild_newest(tmp_path, opened, learner, lambda words: None)
    assert [(hello.version, hello.digest) for hello in kept] == [(1, "one")]


def test_a_learner_that_dies_is_one_line_and_nothing_is_logged(opened: OpenRun, tmp_path: Path) -> None:
    before = list(opened.log.events())
    learner: Any = Learner(Died("the learner process ended by signal SIGKILL"))
    with pytest.raises(RunDirectoryError, match=r"SIGKILL.*mend that and resume"):
        rebuild_newest(tmp_path, opened, learner, lambda words: None)
    assert list(opened.log.events()) == before
