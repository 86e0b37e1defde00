"""Logs of the real scheduler through the real run log, read and drawn: whole, killed, and while they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from offbeat import events as e
from offbeat.report.audit import audit
from offbeat.report.page import write_report
from offbeat.report.read import DATABASE, read_run, read_trajectories
from offbeat.report.story import tell
from offbeat.report.timeline import timeline
from tests.report.scheduled_run import FAULTS, open_scheduled_run, write_scheduled_run
from tests.report.test_page import browse, needs_browser


@pytest.mark.parametrize("seed", [3, 4])
def test_a_run_with_faults_and_kills_is_read_whole(tmp_path: Path, seed: int) -> None:
    run = read_run(write_scheduled_run(tmp_path / "run", seed, faults=FAULTS, kills=2))
    found = audit(run)
    assert found.ok, found.evidence
    assert found.outcome == "finished"
    assert [session for _, _, session in tell(run).sessions] == [e.Opened(0), e.Opened(1), e.Opened(2)]
    finished = [r.event for r in run.records if isinstance(r.event, e.Finished)]
    assert {(f.trajectory_id, f.attempt) for f in finished} == set(run.payloads)
    key = finished[-1].trajectory_id, finished[-1].attempt
    [payload] = read_trajectories(run, [key])
    assert len(payload.token_ids) == run.payloads[key].tokens == finished[-1].tokens
    assert {group for record in run.records for c in record.commands for group in _generated(c)} == set(run.prompts)


def _generated(command: e.Command) -> list[int]:
    return [command.group_id] if isinstance(command, e.Generate) else []


def test_slots_of_the_scheduled_run_hold_one_trajectory_at_a_time(tmp_path: Path) -> None:
    run = read_run(write_scheduled_run(tmp_path / "run", 5))
    data = timeline(run, tell(run))
    assert data is not None
    ends: dict[int, int] = {}
    for row, start, length in zip(data["row"], data["start"], data["length"], strict=True):
        assert start >= ends.get(row, 0)
        ends[row] = start + length
    assert sum(row["kind"] == "slot" for row in data["rows"]) <= data["capacity"]


@pytest.mark.parametrize("events", [0, 1, 12, 60])
def test_a_run_that_goes_on_is_read_out_of_its_write_ahead_log(tmp_path: Path, events: int) -> None:
    directory = tmp_path / "run"
    log = open_scheduled_run(directory, 6, most_events=events)
    assert (directory / f"{DATABASE}-wal").stat().st_size
    assert len(read_run(directory).records) == events
    assert "badge running" in write_report(directory).read_text(encoding="utf-8")
    log.record(e.Tick(), 1e6, [])
    assert read_run(directory).records[-1].event == e.Tick(), "the reader left no lock behind"
    log.close()


@needs_browser
def test_a_real_log_is_drawn_without_an_error(tmp_path: Path) -> None:
    page = write_report(write_scheduled_run(tmp_path / "run", 3, faults=FAULTS, kills=2))
    dom, console = browse(page, tmp_path / "profile", "--dump-dom")
    assert console == []
    assert 'data-errors="0"' in dom
    assert dom.count('class="main-svg"') >= dom.count('class="plot ') > 0
