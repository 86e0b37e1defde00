"""A learner of two processes: the run hears one, and with either of them both end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil

from offbeat.backends.local import Died
from offbeat.records import Batch
from tests.backends.test_learner_resume import LEARNER, LearnerRun
from tests.learner.conftest import model_dir, reference_logits, sample_batch

__all__ = ["model_dir", "reference_logits", "sample_batch"]


def test_two_processes_end_together_and_go_on_where_they_were(
    tmp_path: Path, sample_batch: Callable[..., Batch]
) -> None:
    run = LearnerRun(tmp_path, processes=2)
    try:
        run.start()
        before = run.train(sample_batch(0))
        [other] = psutil.Process(run.backend.workers[LEARNER].process.pid).children()
        other.kill()
        run.send(sample_batch(1, seed=1))
        assert "the learner process ended by exit code" in run.hear(Died).reason
        run.start()
        assert run.train(sample_batch(1, seed=1))["digest"] != before["digest"]
        first = psutil.Process(run.backend.workers[LEARNER].process.pid)
        [other] = first.children()
        os.kill(first.pid, signal.SIGKILL)
        assert "SIGKILL" in run.hear(Died).reason
        other.wait(10)
    finally:
        run.backend.close()
