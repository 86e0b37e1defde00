"""Responses that change lanes, and groups that are evicted: the audit follows them, and notices what cannot be."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from offbeat import events as e
from offbeat.live.runlog import RunLog
from offbeat.report.audit import audit
from offbeat.report.incidents import incident_rows
from offbeat.report.page import write_report
from offbeat.report.read import DATABASE, Record, Run, read_run
from offbeat.report.story import tell
from offbeat.report.timeline import timeline
from tests.report.editable_run import small_settings
from tests.report.scheduled_run import FAULTS, write_scheduled_run

ONE_VERSION = {"rollout__lanes": 4, "rollout__slots": 6, "schedule__max_versions": 1, "run__stall_seconds": 4000}


def moving_run(directory: Path, faults: dict[str, float] | None = None, **changes: object) -> Run:
    settings = small_settings(**(ONE_VERSION | {"run__lease_seconds": 300} | changes))
    return read_run(write_scheduled_run(directory / "run", 7, settings, faults))


def of(kind: type, run: Run) -> list[e.Command]:
    return [command for record in run.records for command in record.commands if isinstance(command, kind)]


@pytest.mark.parametrize("faults", [None, FAULTS])
def test_a_run_whose_responses_move_is_sound_and_drawn(tmp_path: Path, faults: dict[str, float] | None) -> None:
    run = moving_run(tmp_path, faults)
    assert of(e.Attach, run)
    found = audit(run)
    assert found.ok, found.evidence
    story = tell(run)
    data = timeline(run, story)
    assert data is not None
    parts = sum(slot >= 0 for left in story.departures for slot in left.slots)
    assert parts > 0
    assert len(data["row"]) == len(story.finishes) + parts + len(story.publishes) + len(story.evaluations)
    ends: dict[int, int] = {}
    for row, start, length in zip(data["row"], data["start"], data["length"], strict=True):
        assert start >= ends.get(row, 0) or row == 0, "two at once in a slot"
        ends[row] = start + length - 1
    write_report(run.directory)


def edited(run: Run, change) -> Run:
    """The run with every command replaced by what `change` makes of it (None: removed)."""
    records = [
        Record(r.seq, r.now, r.event, [c for command in r.commands if (c := change(command)) is not None])
        for r in run.records
    ]
    return replace(run, records=records)


def test_attached_from_a_lane_on_which_it_did_not_run(tmp_path: Path) -> None:
    run = moving_run(tmp_path)
    first = of(e.Attach, run)[0]
    wrong = edited(run, lambda c: msgspec.structs.replace(c, origin=c.lane) if c is first else c)
    found = audit(wrong)
    assert found.breaches["conservation"] >= 1
    assert any("attached from lane" in line for line in found.evidence["conservation"])


def test_attached_without_having_departed(tmp_path: Path) -> None:
    run = moving_run(tmp_path)
    first = of(e.Attach, run)[0]
    other = first.trajectory_ids[0] + 10_000
    wrong = edited(
        run, lambda c: msgspec.structs.replace(c, trajectory_ids=(other,), attempts=(0,)) if c is first else c
    )
    assert any("did not depart" in line for line in audit(wrong).evidence["conservation"])


def test_never_attached_again(tmp_path: Path) -> None:
    """What departed and was forgotten finishes on a lane that was never told of it."""
    run = moving_run(tmp_path)
    first = of(e.Attach, run)[0]
    assert not audit(edited(run, lambda c: None if c is first else c)).ok


@pytest.fixture
def evicting(tmp_path: Path) -> Run:
    return moving_run(
        tmp_path,
        schedule__at_bound="evict",
        schedule__max_versions=3,
        schedule__max_staleness=1,
        learner__iterations=40,
    )


def test_evictions_are_counted_and_their_prompts_come_again(evicting: Run) -> None:
    found = audit(evicting)
    evictions = of(e.Evict, evicting)
    assert evictions
    assert found.ok, found.evidence
    assert found.conservation.evicted == len(evictions) * 4
    assert found.conservation.holds
    assert found.to_json()["conservation"]["evicted"] == len(evictions) * 4
    write_report(evicting.directory)


def test_evicting_is_a_loss_where_draining_was_promised(evicting: Run) -> None:
    settings = evicting.settings.model_copy(
        update={"schedule": evicting.settings.schedule.model_copy(update={"at_bound": "drain"})}
    )
    found = audit(replace(evicting, settings=settings))
    assert found.breaches["lost"] == found.conservation.evicted
    assert not found.ok


def test_an_evicted_prompt_that_never_comes_again_is_lost(evicting: Run) -> None:
    evict = of(e.Evict, evicting)[0]

    def forget(command: e.Command) -> e.Command:
        later = (
            isinstance(command, e.Generate)
            and command.prompt_id == evict.prompt_id
            and command.group_id > evict.group_id
        )
        return msgspec.structs.replace(command, prompt_id=99_999) if later else command

    assert any("never issued again" in line for line in audit(edited(evicting, forget)).evidence["lost"])


@pytest.mark.parametrize("life", [0, None])
def test_a_lane_that_is_lost_again_by_an_earlier_life_keeps_what_runs_there(tmp_path: Path, life: int | None) -> None:
    """Life 0 never was: the loss is late news. Without a life it counts, and what ended afterwards ran nowhere."""
    run = moving_run(tmp_path)
    late = e.LaneLost(0, "its process was replaced, for lane 1 was", life=life, for_lane=1)
    records = [r for record in run.records for r in (record, Record(record.seq, record.now, late, ()))]
    assert audit(replace(run, records=tuple(records))).ok is (life == 0)


def test_marks_and_standing_still_are_read_told_and_change_no_verdict(tmp_path: Path) -> None:
    run = moving_run(tmp_path)
    with closing(RunLog.open(run.directory / DATABASE)) as log:
        log.record(e.Marked(1, 300, 1024), run.wall_seconds, [])
        log.record(e.Suspended(99.4), run.wall_seconds, [])
    again = read_run(run.directory)
    assert [r.event for r in again.records[-2:]] == [e.Marked(1, 300, 1024), e.Suspended(99.4)]
    assert audit(again) == audit(run)
    assert incident_rows(again)[-1][2:] == ("stood still", "the main process, for 99 s; nobody is blamed for that time")
    write_report(run.directory)


def test_a_log_that_knows_no_lives_is_read(tmp_path: Path) -> None:
    """As runs wrote it before lanes had lives: the fields are missing."""
    run = moving_run(tmp_path, FAULTS)
    with closing(sqlite3.connect(run.directory / DATABASE)) as db, db:
        for field in ("life", "for_lane"):
            db.execute("UPDATE events SET body = json_remove(body, ?)", (f"$.{field}",))
    assert read_run(run.directory).records == run.records
