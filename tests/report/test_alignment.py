"""The page shows alignment where it was measured, and nothing of it where it was not."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from offbeat import events as e
from offbeat.records import StepAlignment
from offbeat.report.figures_alignment import alignment_figures
from offbeat.report.page import write_report
from offbeat.report.read import read_run
from offbeat.report.story import tell
from tests.report.editable_run import small_settings
from tests.report.simulated_run import EditableRun, simulated_run


def with_alignment(made: EditableRun) -> EditableRun:
    """Every step measured but the first, which has no predecessor."""
    number = 0
    for position, row in enumerate(made.rows):
        if isinstance(row.event, e.Trained):
            found = StepAlignment(
                cosine=0.1 + 0.01 * number if number else None,
                controlled=0.05 if number else None,
                update=0.9 if number else None,
                kept=0.98,
                projected=int(number > 0),
                invalid=int(number == 0),
                lags={1: 0.1, 2: 0.05} if number else {},
            )
            report = msgspec.structs.replace(row.event.report, alignment=found)
            made.replace_event(position, report=report)
            number += 1
    return made


def traces(made: EditableRun, folder: Path) -> dict[str, dict[str, list[float | None]]]:
    """y of every trace, by figure and name."""
    run = read_run(made.write(folder))
    drawn = {}
    for figure in alignment_figures(run, tell(run)):
        assert figure.spec is not None
        drawn[figure.name] = {trace["name"]: trace["y"] for trace in json.loads(figure.spec)["data"]}
    return drawn


def test_cosines_counts_and_lags_are_drawn(tmp_path: Path) -> None:
    drawn = traces(
        with_alignment(simulated_run(settings=small_settings(learner__align={"mode": "cap"}))), tmp_path / "run"
    )
    assert set(drawn) == {"alignment", "alignment-control", "alignment-lags"}
    assert set(drawn["alignment"]) == {"gradient", "controlled", "update"}
    assert drawn["alignment"]["gradient"][:2] == [None, 0.11]
    assert set(drawn["alignment-control"]) == {"norm left", "projected", "invalid"}
    assert set(drawn["alignment-lags"]) == {"lag 1", "lag 2"}


def test_observed_there_is_no_controlled_gradient(tmp_path: Path) -> None:
    drawn = traces(
        with_alignment(simulated_run(settings=small_settings(learner__align={"mode": "observe"}))), tmp_path / "run"
    )
    assert set(drawn["alignment"]) == {"gradient", "update"}


def test_off_there_is_nothing(tmp_path: Path) -> None:
    assert traces(simulated_run(), tmp_path / "run") == {}
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "Gradient alignment" not in page
    other = with_alignment(simulated_run(settings=small_settings(learner__align={"mode": "cap"}))).write(
        tmp_path / "other"
    )
    assert "Gradient alignment" in write_report(other).read_text(encoding="utf-8")
