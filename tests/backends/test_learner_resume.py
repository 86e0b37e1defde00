"""The learner's process with alignment control, killed and started again, goes on as if nothing had been."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from offbeat.backends.alignment import attach_alignment
from offbeat.backends.local import LocalBackend, Name
from offbeat.backends.messages import LearnerHello, LearnerUp, StepDone, TrainOn
from offbeat.backends.weights import Canary, publish
from offbeat.learner.step import PolicyLearner
from offbeat.records import Batch
from offbeat.settings import settings_from
from tests.learner.conftest import model_dir, reference_logits, sample_batch, save_model, settings

__all__ = ["model_dir", "reference_logits", "sample_batch"]
LEARNER = Name("learner")
CHOSEN = settings(
    learning_rate=1e-4, align={"mode": "cap", "c_low": 0.05, "c_high": 0.9, "max_skips": 1, "lag_span": 2}
)


class LearnerRun:
    """A run directory with version 0, and a learner's process on it."""

    def __init__(self, directory: Path, **learner: Any) -> None:
        self.directory = directory
        self.settings = settings_from(CHOSEN.model_dump() | {"learner": CHOSEN.learner.model_dump() | learner})
        save_model(directory / "policy")
        learner = PolicyLearner.open(directory / "policy", CHOSEN, attach=attach_alignment)
        canary = Canary((3,), (4,), tuple(learner.score((3,), (4,))))
        self.digest = publish(directory, 0, learner.publish, lambda: canary).digest
        self.version = 0
        self.backend = LocalBackend(directory / "workers.log", threads=1)

    def hear(self, kind: type[Any]) -> Any:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for _, message in self.backend.poll(1.0):
                assert isinstance(message, kind), message
                return message
        raise AssertionError("nothing heard")

    def start(self) -> None:
        hello = LearnerHello(str(self.directory), self.settings.model_dump(), self.version, self.digest, 0.0)
        self.backend.start(LEARNER, hello)
        self.hear(LearnerUp)

    def send(self, batch: Batch) -> None:
        self.backend.send(LEARNER, TrainOn(batch))

    def train(self, batch: Batch) -> dict[str, Any]:
        """What a step reports, but for times, with the digest of the weights."""
        self.send(batch)
        done: StepDone = self.hear(StepDone)
        self.version, self.digest = done.version, done.digest
        told = msgspec.structs.asdict(done.report)
        return {name: told[name] for name in told if not name.endswith("_seconds")} | {"digest": done.digest}


def test_killed_and_resumed_equals_unbroken(tmp_path: Path, sample_batch: Callable[..., Batch]) -> None:
    batches = [sample_batch(iteration, seed=iteration // 3) for iteration in range(6)]
    unbroken, killed = LearnerRun(tmp_path / "unbroken"), LearnerRun(tmp_path / "killed")
    try:
        unbroken.start()
        expected = [unbroken.train(batch) for batch in batches]
        killed.start()
        found = []
        for batch in batches:
            if batch.iteration in (2, 4):
                killed.backend.workers[LEARNER].process.kill()
                killed.start()
            found.append(killed.train(batch))
    finally:
        unbroken.backend.close()
        killed.backend.close()
    assert found == expected
    controlled = [report["alignment"] for report in expected]
    assert sum(alignment.projected + alignment.skipped + alignment.released for alignment in controlled) >= 2
