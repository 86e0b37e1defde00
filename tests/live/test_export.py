"""Model invariant: a finished run has its model whole, or is given it when it is taken up again."""

from __future__ import annotations

from pathlib import Path

import pytest

from offbeat import wire
from offbeat.backends.local import Died
from offbeat.backends.messages import Exported, LearnerHello
from offbeat.errors import RunDirectoryError, RunFailed
from offbeat.live.export import LEARNER, export_model, has_model
from tests.live.conftest import Puppets, finished_run

HELLO = LearnerHello("run", {}, 2, "", 0.0)


def test_a_finished_run_without_a_whole_model_is_given_one(tmp_path: Path, policy: Path) -> None:
    """Killed at any moment between the recorded Stop and the last byte of the model."""
    run = finished_run(tmp_path / "run", policy)
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("half a model")
    (run / ".model.writing").mkdir()
    (run / ".model.writing" / "config.json").write_text("half a model")
    said: list[str] = []
    assert wire.go_on(run, lambda opened: [], said.append).outcome == "finished"
    assert "model/ is missing" in said[0]
    assert has_model(run)
    assert (run / "model" / "model.safetensors").read_bytes() == (
        run / "versions" / "000002" / "model.safetensors"
    ).read_bytes()
    assert (run / "model" / "tokenizer.json").is_file()
    assert not (run / ".model.writing").exists()
    written = (run / "model" / "model.safetensors").stat().st_mtime_ns
    assert wire.go_on(run, lambda opened: [], said.append).outcome == "finished"
    assert (run / "model" / "model.safetensors").stat().st_mtime_ns == written
    assert len(said) == 1


def test_a_finished_run_that_cannot_be_given_its_model_says_what_is_missing(tmp_path: Path, policy: Path) -> None:
    run = finished_run(tmp_path / "run", policy)
    (run / "versions" / "000002" / "model.safetensors").unlink()
    with pytest.raises(RunDirectoryError, match=r"version 2|model\.safetensors"):
        wire.go_on(run, lambda opened: [], print)


def test_a_learner_that_is_gone_is_started_and_asked(tmp_path: Path, puppets: Puppets) -> None:
    puppets.said = [(LEARNER, Exported("x"))]
    puppets.workers[LEARNER] = HELLO
    export_model(tmp_path, puppets, HELLO, 60.0)  # type: ignore[arg-type]
    assert puppets.started == []
    del puppets.workers[LEARNER]
    with pytest.raises(RunFailed, match="not done within 0 s"):
        export_model(tmp_path, puppets, HELLO, 0.0)  # type: ignore[arg-type]
    assert puppets.started == [LEARNER]
    assert [name for name, _ in puppets.sent] == [LEARNER, LEARNER]


def test_a_learner_that_dies_over_it_is_one_line_at_once(tmp_path: Path, puppets: Puppets) -> None:
    puppets.workers[LEARNER] = HELLO
    puppets.said = [(LEARNER, Died("No space left on device"))]
    with pytest.raises(RunFailed, match=r"No space left.*--resume") as caught:
        export_model(tmp_path, puppets, HELLO, 3600.0)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_an_answer_that_lies_there_is_heard_before_the_clock_is_asked(tmp_path: Path, puppets: Puppets) -> None:
    puppets.workers[LEARNER] = HELLO
    puppets.said = [(LEARNER, Exported("x"))]
    export_model(tmp_path, puppets, HELLO, 0.0)  # type: ignore[arg-type]
