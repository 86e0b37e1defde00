"""The list of incidents: one line for what one event caused on a lane, and nothing for what is normal."""

from __future__ import annotations

from pathlib import Path

from offbeat import events as e
from offbeat.report.incidents import incident_rows
from offbeat.report.read import read_run
from offbeat.report.sections import INCIDENTS_SHOWN, incident_section
from tests.report.editable_run import EditableRun, Row, small_settings
from tests.report.simulated_run import simulated_run


def rows_of(directory: Path, *rows: Row) -> list[tuple[float, int, str, str]]:
    return incident_rows(read_run(EditableRun(small_settings(), list(rows)).write(directory)))


def again(group: int, *attempts: int, lane: int = 0, version: int = 3) -> e.Generate:
    ids = tuple(range(group * 4, group * 4 + len(attempts)))
    return e.Generate(lane, version, group, group, ids, attempts)


def test_a_lost_lane_is_one_line_for_each_version_restarted(tmp_path: Path) -> None:
    commands: list[e.Command] = [e.StartLane(0), again(0, 1, 1, 1, 1), again(1, 2, 1, 1, 1), again(2, 1, version=4)]
    assert rows_of(tmp_path, Row(2.0, e.LaneLost(0, "killed"), commands)) == [
        (2.0, 1, "lane lost", "lane 0: killed"),
        (2.0, 1, "restarted", "trajectories 0, 1, 2, 3, 4, 5, 6, 7 on lane 0 under version 3"),
        (2.0, 1, "restarted", "trajectory 8 on lane 0 under version 4"),
    ]


def test_many_are_counted_and_not_named(tmp_path: Path) -> None:
    commands: list[e.Command] = [again(group, 1, 1, 1, 1) for group in range(3)]
    [found] = rows_of(tmp_path, Row(1.0, e.Tick(), commands))
    assert found[2:] == ("restarted", "12 trajectories, 0 to 11, on lane 0 under version 3")


def test_only_later_attempts_are_restarts(tmp_path: Path) -> None:
    [found] = rows_of(tmp_path, Row(1.0, e.Tick(), [again(0, 0, 0, 1, 0), again(1, 0, 0, 0, 0)]))
    assert found[2:] == ("restarted", "trajectory 2 on lane 0 under version 3")


def test_a_plain_run_has_only_its_end(tmp_path: Path) -> None:
    made = simulated_run(kill_lane=None, expire=None, resume=None, reject=None)
    kinds = {what for _, _, what, _ in incident_rows(read_run(made.write(tmp_path)))}
    assert kinds == {"update skipped", "stop: finished"}


def test_a_long_list_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    rows = [Row(float(i), e.LearnerLost(f"reason {i}"), []) for i in range(INCIDENTS_SHOWN + 40)]
    section = incident_section(read_run(EditableRun(small_settings(), rows).write(tmp_path)))
    assert section.count("learner lost</td>") == INCIDENTS_SHOWN
    assert f"learner lost ×{INCIDENTS_SHOWN + 40}." in section
    assert ">40 more<" in section
    assert ">reason 0<" in section
    assert f">reason {INCIDENTS_SHOWN + 39}<" in section


def test_nothing_happened(tmp_path: Path) -> None:
    section = incident_section(read_run(EditableRun(small_settings(), [Row(0.0, e.Opened(0), [])]).write(tmp_path)))
    assert "Nothing out of the ordinary." in section


def test_a_lever_that_moves_is_an_incident_with_its_reason(tmp_path: Path) -> None:
    moved = e.Steer(8, "learning rate", 1.0, 0.5, 0.9, "staleness pressure 0.90 above 0.8: learning rate 1 -> 0.5")
    assert rows_of(tmp_path, Row(3.0, e.Tick(), [moved])) == [(3.0, 1, "autopilot", moved.reason)]
