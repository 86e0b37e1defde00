"""The timeline's columns, against the events they stand for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from offbeat import events as e
from offbeat.report.read import Run, read_run
from offbeat.report.story import Story, tell
from offbeat.report.timeline import first_window, timeline
from tests.report.simulated_run import EditableRun, simulated_run, small_settings


@pytest.fixture(scope="module")
def made() -> EditableRun:
    return simulated_run()


@pytest.fixture(scope="module")
def run(made: EditableRun, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return read_run(made.write(tmp_path_factory.mktemp("made")))


def test_every_finish_and_every_iteration_is_one_segment(made: EditableRun, run: Run) -> None:
    data = timeline(run, tell(run))
    assert data is not None
    shown = set()
    for row, start, length, version, identity in zip(
        data["row"], data["start"], data["length"], data["version"], data["id"], strict=True
    ):
        shown.add((data["rows"][row]["label"], start, start + length, version, identity))
    expected = set()
    for event in (row.event for row in made.rows):
        if isinstance(event, e.Finished):
            label, version, identity = f"lane {event.lane}, slot {event.slot}", event.version, event.trajectory_id
        elif isinstance(event, e.Trained):
            label, version, identity = "learner", event.version - 1, event.version - 1
        else:
            continue
        began = round(event.started * 1000)
        expected.add((label, began, max(began + 1, round(event.ended * 1000)), version, identity))
    assert expected == {segment for segment in shown if segment[0] != "evaluation"}


def test_segments_are_in_order_and_do_not_overlap_in_a_row(run: Run) -> None:
    data = timeline(run, tell(run))
    assert data is not None
    segments = list(zip(data["row"], data["start"], data["length"], strict=True))
    assert segments == sorted(segments)
    for (row, start, length), (next_row, next_start, _) in pairwise(segments):
        assert row != next_row or next_start >= start + length - 1, "one millisecond is lost to rounding at most"


def test_rows_are_labelled_and_resumes_marked(run: Run) -> None:
    data = timeline(run, tell(run))
    assert data is not None
    assert [row["kind"] for row in (data["rows"][0], data["rows"][-1])] == ["evaluation", "learner"]
    lanes = [row["lane"] for row in data["rows"][1:-1]]
    assert lanes == sorted(lanes, reverse=True), "lane 0 on top"
    assert len(data["sessions"]) == 1
    assert [words for _, words in data["incidents"]] == ["lane 0 lost"]
    assert data["capacity"] == 20


def test_rows_beyond_the_slots_are_called_spare(made: EditableRun, tmp_path: Path) -> None:
    narrow = EditableRun(small_settings(rollout__slots=3), made.rows, made.payloads, made.rewards, made.prompt_ids)
    run = read_run(narrow.write(tmp_path / "run"))
    data = timeline(run, tell(run))
    assert data is not None
    labels = [row["label"] for row in data["rows"]]
    assert "lane 0, slot 2" in labels
    assert "lane 0, spare row 3" in labels


def test_first_window_lies_in_the_run(run: Run) -> None:
    story = tell(run)
    start, end = first_window(story, run.wall_seconds)
    assert 0 <= start < end <= run.wall_seconds
    assert end - start == pytest.approx(2.0)
    assert first_window(Story(4), 7.0) == (0.0, 7.0)


def test_nothing_finished_gives_none(made: EditableRun, tmp_path: Path) -> None:
    run = read_run(EditableRun(made.settings, rows=made.rows[:3]).write(tmp_path / "run"))
    assert timeline(run, tell(run)) is None
