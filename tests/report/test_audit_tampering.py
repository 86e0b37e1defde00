"""The audit convicts every run that was tampered with: each test breaks one law in a good log.

What it breaks must be counted exactly, with words that say where.
"""

from __future__ import annotations

import io
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from offbeat import events as e
from offbeat.report.audit import audit
from offbeat.report.read import Record, Run
from tests.report.audited_run import (
    BATCH,
    GROUP,
    K,
    accepted,
    change,
    commands,
    consumed_key,
    gone,
    good_run,
    only,
    says,
    set_to,
    settings,
    trained_groups,
    until,
    with_payload,
)


@pytest.fixture
def good() -> Run:
    return good_run()


def test_c1_restarted_under_another_version(good: Run) -> None:
    again = next(c for c in commands(good, e.Generate) if 0 not in c.attempts)
    found = audit(change(good, command=only(again, set_to(version=again.version + 1))))
    assert found.to_json()["c1_violations"] >= len(again.trajectory_ids)
    says(found, "c1", "dispatched under version", "seq")


def test_c1_finished_by_another_version(good: Run) -> None:
    heard = accepted(good, consumed_key(good), e.Finished)
    found = audit(change(good, event=only(heard, set_to(version=heard.version + 1))))
    assert found.breaches["c1"] == 1
    says(found, "c1", f"trajectory {heard.trajectory_id},", f"asked for {heard.version}")


def test_c1_payload_of_another_version(good: Run) -> None:
    key = consumed_key(good)
    found = audit(with_payload(good, key, span_versions=(good.payloads[key].span_versions[0] + 1,)))
    assert found.breaches["c1"] == 1
    says(found, "c1", f"trajectory {key[0]},", "spans of versions")


def test_c1_payload_of_several_spans(good: Run) -> None:
    key = consumed_key(good)
    version = good.payloads[key].span_versions[0]
    found = audit(with_payload(good, key, span_versions=(version, version)))
    assert found.breaches["c1"] == 1
    says(found, "c1", "2 spans")
    assert audit(with_payload(good, key, span_versions=(version, version + 1))).breaches["c1"] == 1


def test_c1_finished_in_several_spans(good: Run) -> None:
    heard = accepted(good, consumed_key(good), e.Finished)
    found = audit(change(good, event=only(heard, set_to(spans=2))))
    assert found.breaches["c1"] == 1
    says(found, "c1", f"trajectory {heard.trajectory_id},", "2 spans")


def test_c2_lost_when_finished(good: Run) -> None:
    """A group that was issued and quietly forgotten: its Quarantine never was."""
    dropped = commands(good, e.Quarantine)[0]
    found = audit(change(good, command=only(dropped, gone)))
    assert found.to_json()["c2_lost"] == GROUP
    assert not found.conservation.holds
    says(found, "lost", f"group {dropped.group_id},", "seq")


def test_c2_lost_out_of_a_batch_while_running(good: Run) -> None:
    """A crash: the same iteration is commanded again, but one group is missing from it."""
    position = next(i for i, r in enumerate(good.records) if any(isinstance(c, e.Train) for c in r.commands))
    cut = until(good, position + 1)
    assert audit(cut).ok
    train = commands(cut, e.Train)[-1]
    smaller = e.Train(train.iteration, train.group_ids[1:], train.attempts[1:])
    last = cut.records[-1]
    found = audit(replace(cut, records=(*cut.records, Record(last.seq + 1, last.now, e.Tick(), (smaller,)))))
    assert found.outcome == "running"
    assert found.breaches["lost"] == GROUP
    says(found, "lost", f"group {train.group_ids[0]},", "left out")


def test_c2_lost_because_it_can_never_be_trained_on(good: Run) -> None:
    """In a run that goes on: swapped out of its batch until it is staler than the bound."""
    iteration, group = trained_groups(good)[0]
    end = next(i for i, r in enumerate(good.records) if isinstance(r.event, e.Trained) and r.event.version == K + 3)

    def swap(found: object) -> object:
        if isinstance(found, e.Train) and found.iteration == iteration:
            kept = [(g, a) for g, a in zip(found.group_ids, found.attempts, strict=True) if g != group]
            return e.Train(iteration, tuple(g for g, _ in kept), tuple(a for _, a in kept))
        return found

    found = audit(change(until(good, end + 1), command=swap))
    assert found.breaches["lost"] == GROUP
    says(found, "lost", f"group {group},", "can never be consumed")


def test_c2_lost_payload_while_running(good: Run) -> None:
    heard = accepted(good, consumed_key(good), e.Finished)
    end = next(i for i, r in enumerate(good.records) if r.event is heard)
    cut = until(good, end + 1)
    assert audit(cut).ok
    payloads = {k: p for k, p in cut.payloads.items() if k != (heard.trajectory_id, heard.attempt)}
    found = audit(replace(cut, payloads=payloads))
    assert found.breaches["lost"] == GROUP
    says(found, "lost", f"trajectory {heard.trajectory_id} ", "payload")


def test_c2_consumed_twice(good: Run) -> None:
    trains = {c.iteration: c for c in commands(good, e.Train)}
    first, second = trains[4], trains[6]
    again = set_to(
        group_ids=(first.group_ids[0], *second.group_ids[1:]), attempts=(first.attempts[0], *second.attempts[1:])
    )
    found = audit(change(good, command=lambda c: again(c) if isinstance(c, e.Train) and c.iteration == 6 else c))
    assert found.to_json()["c2_consumed_twice"] == GROUP
    says(found, "consumed_twice", f"group {first.group_ids[0]}:", "iteration 4", "iteration 6")
    assert found.breaches["lost"] == GROUP  # the one that was pushed out


def test_c2_twice_in_one_batch(good: Run) -> None:
    train = {c.iteration: c for c in commands(good, e.Train)}[4]
    double = set_to(group_ids=(train.group_ids[0], *train.group_ids[:-1]))
    found = audit(change(good, command=lambda c: double(c) if isinstance(c, e.Train) and c.iteration == 4 else c))
    assert found.breaches["consumed_twice"] == GROUP


def test_the_same_train_commanded_again_is_no_second_consumption(good: Run) -> None:
    position = next(i for i, r in enumerate(good.records) if any(isinstance(c, e.Train) for c in r.commands))
    record = good.records[position]
    train = next(c for c in record.commands if isinstance(c, e.Train))
    twice = msgspec.structs.replace(record, commands=(*record.commands, train))
    records = (*good.records[:position], twice, *good.records[position + 1 :])
    found = audit(replace(good, records=records))
    assert found.ok
    assert found.trajectories == audit(good).trajectories


def test_c3_too_stale(good: Run) -> None:
    """All of a late group was generated under version 0."""
    group = trained_groups(good)[-1][1]

    def old(found: object) -> object:
        mine = isinstance(found, e.Generate) and found.group_id == group
        mine = mine or (isinstance(found, e.Finished) and found.trajectory_id // GROUP == group)
        return msgspec.structs.replace(found, version=0) if mine else found

    payloads = {
        k: msgspec.structs.replace(p, span_versions=(0,)) if k[0] // GROUP == group else p
        for k, p in good.payloads.items()
    }
    found = audit(replace(change(good, old, old), payloads=payloads))
    assert found.to_json()["c3_violations"] == GROUP
    assert found.breaches["c1"] == 0
    assert found.staleness.max == 9
    says(found, "c3", f"trajectory {group * GROUP},", "staleness 9", "seq")


def test_c3_from_the_future(good: Run) -> None:
    iteration, group = trained_groups(good)[0]

    def young(found: object) -> object:
        mine = isinstance(found, e.Generate) and found.group_id == group
        mine = mine or (isinstance(found, e.Finished) and found.trajectory_id // GROUP == group)
        return msgspec.structs.replace(found, version=iteration + 1) if mine else found

    found = audit(change(good, young, young))
    assert found.to_json()["c3_violations"] == GROUP
    says(found, "c3", "staleness -1")
    assert found.breaches["versions"]  # it was not published yet


def test_c3_tightened_bound(good: Run) -> None:
    honest = audit(good).staleness.histogram
    found = audit(replace(good, settings=settings(max_staleness=0)))
    assert found.breaches["c3"] == sum(count for staleness, count in honest.items() if staleness > 0)
    assert len(found.evidence["c3"]) == min(20, found.breaches["c3"])
    assert found.to_json()["staleness"]["bound"] == 0


def test_quarantined_and_consumed(good: Run) -> None:
    group = trained_groups(good)[0][1]
    last = good.records[-1]
    extra = msgspec.structs.replace(last, commands=(e.Quarantine(group, "late"), *last.commands))
    found = audit(replace(good, records=(*good.records[:-1], extra)))
    assert found.breaches["conservation"] == GROUP
    assert not found.conservation.holds
    says(found, "conservation", f"group {group}:")


def test_group_number_skipped(good: Run) -> None:
    group = commands(good, e.Quarantine)[0].group_id

    def mine(found: object) -> object:
        return None if isinstance(found, e.Generate | e.Quarantine) and found.group_id == group else found

    says(audit(change(good, command=mine)), "conservation", f"group {group}:", "skipped")


def test_dispatched_while_it_still_runs(good: Run) -> None:
    position, first = next((i, c) for i, r in enumerate(good.records) for c in r.commands if isinstance(c, e.Generate))
    record = good.records[position]
    again = msgspec.structs.replace(first, attempts=tuple(a + 7 for a in first.attempts))
    double = msgspec.structs.replace(record, commands=(*record.commands, again))
    cut = (*good.records[:position], double)
    says(audit(replace(good, records=cut, payloads={})), "conservation", "still ran")


@pytest.mark.parametrize("version", [7, 4])
def test_versions_with_a_gap_or_a_repetition(good: Run, version: int) -> None:
    fifth = next(r.event for r in good.records if isinstance(r.event, e.Trained) and r.event.version == 5)
    found = audit(change(good, event=only(fifth, set_to(version=version))))
    says(found, "versions", f"version {version}", "5 was due")


def test_version_missing(good: Run) -> None:
    fifth = next(r.event for r in good.records if isinstance(r.event, e.Trained) and r.event.version == 5)
    found = audit(change(good, event=only(fifth, gone)))
    says(found, "versions", "5 was due")
    assert found.breaches["lost"] == BATCH


def test_published_without_a_batch(good: Run) -> None:
    found = audit(change(good, command=lambda c: None if isinstance(c, e.Train) and c.iteration == 4 else c))
    says(found, "versions", "without a Train")


def test_consumed_without_a_reward(good: Run) -> None:
    scored = accepted(good, consumed_key(good), e.Scored)
    found = audit(change(good, event=only(scored, gone)))
    assert found.breaches["rewards"] == 1
    says(found, "rewards", f"trajectory {scored.trajectory_id},", "no accepted Scored")


def test_consumed_with_a_reward_of_an_older_attempt(good: Run) -> None:
    scored = accepted(good, consumed_key(good), e.Scored)
    says(audit(change(good, event=only(scored, set_to(attempt=scored.attempt + 1)))), "rewards", "Scored")


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_consumed_with_a_reward_that_is_no_number(good: Run, reward: float) -> None:
    scored = accepted(good, consumed_key(good), e.Scored)
    assert audit(change(good, event=only(scored, set_to(reward=reward)))).breaches["rewards"] == 1


def test_consumed_another_attempt_than_the_accepted_one(good: Run) -> None:
    train = {c.iteration: c for c in commands(good, e.Train)}[4]
    other = tuple((tries[0] + 1, *tries[1:]) for tries in train.attempts)
    worse = set_to(attempts=other)
    found = audit(change(good, command=lambda c: worse(c) if isinstance(c, e.Train) and c.iteration == 4 else c))
    assert found.breaches["rewards"] == len(train.group_ids)


@pytest.mark.parametrize(
    "damage", [{"logprobs_sound": False}, {"tokens": 0}, {"logprobs": 0}, {"named": (0, 99)}, {"reward": 9.0}]
)
def test_payload_damaged(good: Run, damage: dict[str, object]) -> None:
    key = consumed_key(good)
    assert audit(with_payload(good, key, **damage)).breaches["payloads"] >= 1


def test_consumed_without_its_payload(good: Run) -> None:
    key = consumed_key(good)
    found = audit(replace(good, payloads={k: p for k, p in good.payloads.items() if k != key}))
    assert found.breaches["payloads"] == 1
    assert found.breaches["c3"] == 0
    says(found, "payloads", f"trajectory {key[0]},", "not stored")


def test_rendering_shows_counts_and_evidence(good: Run) -> None:
    dropped = commands(good, e.Quarantine)[0]
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(audit(change(good, command=only(dropped, gone))))
    text = console.export_text()
    assert "DOES NOT ADD UP" in text
    assert f"group {dropped.group_id}, issued at seq" in text
