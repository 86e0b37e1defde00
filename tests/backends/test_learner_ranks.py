"""A learner of two processes, each with half of everything: the run hears one, and with either of them both end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
from transformers import AutoModelForCausalLM

from offbeat.backends.local import Died
from offbeat.backends.messages import Exported, ExportTo
from offbeat.backends.weights import check_version, version_directory
from offbeat.records import Batch
from tests.backends.test_learner_resume import LEARNER, LearnerRun
from tests.learner.conftest import model_dir, reference_logits, sample_batch

__all__ = ["model_dir", "reference_logits", "sample_batch"]


def test_two_processes_end_together_and_go_on_where_they_were(
    tmp_path: Path, sample_batch: Callable[..., Batch]
) -> None:
    run = LearnerRun(tmp_path, processes=2, sharding="fsdp2")
    try:
        run.start()
        before = run.train(sample_batch(0))
        [other] = psutil.Process(run.backend.workers[LEARNER].process.pid).children()
        other.kill()
        run.send(sample_batch(1, seed=1))
        assert "the learner process ended by exit code" in run.hear(Died).reason
        run.start()
        assert run.train(sample_batch(1, seed=1))["digest"] != before["digest"]
        check_version(tmp_path, 2, run.digest)
        assert len(list((version_directory(tmp_path, 2) / "shards").iterdir())) == 2
        run.backend.send(LEARNER, ExportTo(str(tmp_path / "model")))
        run.hear(Exported)
        AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        first = psutil.Process(run.backend.workers[LEARNER].process.pid)
        [other] = first.children()
        os.kill(first.pid, signal.SIGKILL)
        assert "SIGKILL" in run.hear(Died).reason
        other.wait(10)
    finally:
        run.backend.close()
