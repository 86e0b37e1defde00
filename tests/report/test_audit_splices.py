"""Schedules that do not promise C1 and C3: what they give up is counted and not judged, real damage is judged."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import msgspec
import pytest
from rich.console import Console

from offbeat import events as e
from offbeat.flow.schedules import SCHEDULES
from offbeat.report.audit import audit
from offbeat.report.laws import LAWS, promised
from offbeat.report.page import write_report
from offbeat.report.read import Run, read_run
from offbeat.report.summary import closing_words, summary
from tests.report.audited_run import (
    GROUP,
    accepted,
    change,
    commands,
    gone,
    only,
    rows_of,
    run_of,
    says,
    set_to,
    settings,
    spliced_run,
    trained_groups,
    until,
    with_payload,
)
from tests.report.editable_run import small_settings
from tests.report.scheduled_run import write_scheduled_run

Key = tuple[int, int]


@pytest.fixture(params=["partial", "in-flight"])
def spliced(request: pytest.FixtureRequest) -> Run:
    return spliced_run(request.param)


def consumed_keys(run: Run) -> list[Key]:
    trains = {c.iteration: c for c in commands(run, e.Train)}.values()
    pairs = [pair for train in trains for pair in zip(train.group_ids, train.attempts, strict=True)]
    return [(group * GROUP + i, attempt) for group, attempts in pairs for i, attempt in enumerate(attempts)]


def key_of_spans(run: Run, least: int) -> Key:
    """A consumed trajectory of at least so many spans."""
    return next(key for key in consumed_keys(run) if len(run.payloads[key].span_versions) >= least)


# -- what is promised ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_the_table_agrees_with_what_the_schedules_say_of_themselves(schedule: str) -> None:
    """Here only are the two brought together: the audit does not ask."""
    kept = promised(schedule)
    assert ("c1" in kept) == (SCHEDULES[schedule].splices is None)
    assert ("c3" in kept) == SCHEDULES[schedule].bounded
    assert set(LAWS) - set(kept) <= {"c1", "c3"}


def test_what_is_given_up_is_counted_by_hand(spliced: Run) -> None:
    found = audit(spliced)
    told = found.to_json()
    several = {key[0] for key, payload in spliced.payloads.items() if len(set(payload.span_versions)) > 1}
    assert told["c1_violations"] == len(several) > 0
    ages = [
        iteration - spliced.payloads[key].span_versions[0]
        for iteration, group in trained_groups(spliced)
        for key in consumed_keys(spliced)
        if key[0] // GROUP == group
    ]
    assert sorted(ages) == sorted(s for s, count in found.staleness.histogram.items() for _ in range(count))
    assert told["c3_violations"] == sum(age > found.staleness.bound for age in ages)
    spans = fmean(len(spliced.payloads[key].span_versions) for key in consumed_keys(spliced))
    assert told["spans_per_trajectory"] == pytest.approx(spans)
    assert spans > 1
    assert told["promised"] == ["lost", "consumed_twice", "conservation", "versions", "rewards", "payloads", "prompts"]
    assert told["ok"]


def test_the_bound_is_counted_and_not_judged(spliced: Run) -> None:
    found = audit(replace(spliced, settings=settings(name=spliced.settings.schedule.name, max_staleness=0)))
    assert found.breaches["c3"] > 0
    assert found.ok
    strict = audit(replace(spliced, settings=settings(max_staleness=0)))
    assert not strict.ok
    assert {"c1", "c3"} <= set(strict.broken)


def test_an_old_group_is_not_lost_where_no_bound_is_promised(spliced: Run) -> None:
    """Left out of every batch in a run that goes on: it may still be consumed, unless a schedule has a bound."""
    iteration, group = trained_groups(spliced)[0]
    end = next(i for i, r in enumerate(spliced.records) if isinstance(r.event, e.Trained) and r.event.version == 7)

    def leave_out(found: object) -> object:
        if isinstance(found, e.Train) and found.iteration == iteration:
            kept = [(g, a) for g, a in zip(found.group_ids, found.attempts, strict=True) if g != group]
            return e.Train(iteration, tuple(g for g, _ in kept), tuple(a for _, a in kept))
        return found

    waiting = change(until(spliced, end + 1), command=leave_out)
    assert audit(waiting).breaches["lost"] == 0
    assert audit(replace(waiting, settings=settings())).breaches["lost"] >= GROUP


# -- real damage -----------------------------------------------------------------------------------------------


def test_spans_that_go_back(spliced: Run) -> None:
    key = key_of_spans(spliced, 2)
    first, *rest = spliced.payloads[key].span_versions
    found = audit(with_payload(spliced, key, span_versions=(*rest, first)))
    says(found, "versions", f"trajectory {key[0]},", "go back")


def test_first_span_of_another_version_than_announced(spliced: Run) -> None:
    key = key_of_spans(spliced, 2)
    _, *rest = spliced.payloads[key].span_versions
    found = audit(with_payload(spliced, key, span_versions=(rest[0], *rest)))
    assert found.breaches["payloads"] == 1
    says(found, "payloads", f"trajectory {key[0]},", "begun under version")


def test_spans_missing(spliced: Run) -> None:
    key = key_of_spans(spliced, 2)
    found = audit(with_payload(spliced, key, span_versions=spliced.payloads[key].span_versions[:1]))
    assert found.breaches["payloads"] == 1
    says(found, "payloads", f"trajectory {key[0]},", "spans announced, 1 stored")


def test_more_spans_announced_than_stored(spliced: Run) -> None:
    heard = accepted(spliced, consumed_keys(spliced)[0], e.Finished)
    found = audit(change(spliced, event=only(heard, set_to(spans=heard.spans + 1))))
    assert found.breaches["payloads"] == 1
    says(found, "payloads", f"{heard.spans + 1} spans announced, {heard.spans} stored")


def test_begun_under_an_older_version_than_asked(spliced: Run) -> None:
    asked = {
        (t, a): c for c in commands(spliced, e.Generate) for t, a in zip(c.trajectory_ids, c.attempts, strict=True)
    }
    key = next(key for key in consumed_keys(spliced) if asked[key].version > 0)
    older = asked[key].version - 1
    heard = accepted(spliced, key, e.Finished)
    versions = (older, *spliced.payloads[key].span_versions[1:])
    found = audit(with_payload(change(spliced, only(heard, set_to(version=older))), key, span_versions=versions))
    says(found, "versions", f"trajectory {key[0]},", f"asked for {older + 1}")


def test_a_span_of_a_version_not_yet_published(spliced: Run) -> None:
    key = key_of_spans(spliced, 2)
    versions = (*spliced.payloads[key].span_versions[:-1], 99)
    found = audit(with_payload(spliced, key, span_versions=versions))
    assert found.breaches["versions"] == 1
    says(found, "versions", "version 99, which was not published yet")


def test_a_span_of_a_version_that_no_command_named(spliced: Run) -> None:
    key = key_of_spans(spliced, 2)
    lane, last = accepted(spliced, key, e.Finished).lane, spliced.payloads[key].span_versions[-1]

    def unsaid(found: e.Command) -> e.Command | None:
        return None if isinstance(found, e.Continue) and (found.lane, found.version) == (lane, last) else found

    says(audit(change(spliced, command=unsaid)), "versions", f"trajectory {key[0]},", "nor a Continue named")


def test_a_restart_may_be_of_a_newer_version_and_not_of_an_older_one(spliced: Run) -> None:
    first = {c.group_id: c.version for c in reversed(commands(spliced, e.Generate))}
    again = [c for c in commands(spliced, e.Generate) if 0 not in c.attempts]
    newer = next(c for c in again if c.version > first[c.group_id])
    found = audit(change(spliced, command=only(newer, set_to(version=first[newer.group_id] - 1))))
    says(found, "versions", f"trajectory {newer.trajectory_ids[0]}:", "was restarted under version")
    strict = replace(spliced, settings=settings())
    says(audit(strict), "c1", f"trajectory {newer.trajectory_ids[0]}:", "was dispatched under version")


def test_a_group_is_issued_under_one_version_even_so(spliced: Run) -> None:
    position, command = next(
        (i, c) for i, r in enumerate(spliced.records) for c in r.commands if isinstance(c, e.Generate) and c.version > 2
    )
    (first, *rest), (attempt, *others) = command.trajectory_ids, command.attempts
    halves = (
        msgspec.structs.replace(command, trajectory_ids=(first,), attempts=(attempt,)),
        msgspec.structs.replace(command, trajectory_ids=tuple(rest), attempts=tuple(others), version=1),
    )
    record = spliced.records[position]
    parts = tuple(part for c in record.commands for part in (halves if c is command else (c,)))
    records = (*spliced.records[:position], msgspec.structs.replace(record, commands=parts))
    found = audit(replace(until(spliced, position + 1), records=records))
    assert found.breaches["versions"] == len(rest)
    says(found, "versions", f"trajectory {rest[0]}:", "first dispatched under version 1")


def test_finished_and_stored_though_nobody_asked(spliced: Run) -> None:
    generate = commands(spliced, e.Generate)[0]
    found = audit(change(spliced, command=only(generate, gone)))
    says(found, "conservation", "finished at seq", "no Generate names this attempt")
    says(found, "conservation", "its payload is stored", "no Generate names this attempt")


def test_consumed_twice_and_lost_are_judged_as_ever(spliced: Run) -> None:
    trains = {c.iteration: c for c in commands(spliced, e.Train)}
    first, second = trains[4], trains[6]
    again = set_to(
        group_ids=(first.group_ids[0], *second.group_ids[1:]), attempts=(first.attempts[0], *second.attempts[1:])
    )
    found = audit(change(spliced, command=lambda c: again(c) if isinstance(c, e.Train) and c.iteration == 6 else c))
    assert found.broken[:2] == ["lost", "consumed_twice"]
    assert not found.ok


# -- how it is shown -------------------------------------------------------------------------------------------


def test_the_terminal_says_what_is_not_promised(spliced: Run) -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    found = audit(spliced)
    console.print(found)
    text = console.export_text()
    name = spliced.settings.schedule.name
    assert text.count(f"(not promised by {name})") == 2
    assert "broken" not in text
    assert f"spans per trajectory: mean {found.spans_per_trajectory:.2f}" in text


def test_the_page_and_the_closing_words_of_a_run_without_a_bound(tmp_path: Path) -> None:
    shape = {"run__lease_seconds": 300, "run__stall_seconds": 4000}
    directory = write_scheduled_run(tmp_path / "run", 3, small_settings(schedule__name="partial", **shape))
    run = read_run(directory)
    found = audit(run)
    assert found.ok, found.evidence
    assert found.spans_per_trajectory is not None
    assert found.spans_per_trajectory > 1
    text = write_report(directory).read_text(encoding="utf-8")
    assert f"sampled in {found.spans_per_trajectory:.2f} spans each on average" in text
    assert "no bound promised" in text
    assert "constraint C2<" in text
    assert f'(not promised by partial)</td><td class="number unpromised">{found.breaches["c1"]}<' in text
    assert '<td class="number broken">' not in text
    told = summary(run, found)
    assert told["staleness"]["bound"] is None
    assert ", no bound" in closing_words(told)


@pytest.mark.parametrize("schedule", ["sync", "one-step-off"])
def test_schedules_of_one_version_are_judged_by_every_law(schedule: str) -> None:
    chosen = settings(name=schedule)
    run = run_of(rows_of(1, chosen, faults=False), chosen)
    found = audit(run)
    assert found.ok
    assert found.promised == LAWS
    assert found.staleness.max == chosen.schedule.staleness_bound
    key = consumed_keys(run)[-1]
    heard, version = accepted(run, key, e.Finished), run.payloads[key].span_versions[0]
    says(audit(change(run, event=only(heard, set_to(spans=2)))), "c1", f"trajectory {key[0]},", "in 2 spans")
    says(audit(with_payload(run, key, span_versions=(version, version + 1))), "c1", "spans of versions")
