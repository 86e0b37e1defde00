"""The audit accepts every run of the real scheduler, at any moment, and its numbers are those counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offbeat import events as e
from offbeat.live.runlog import RunLog
from offbeat.records import Prompt, Span, Trajectory
from offbeat.report.audit import audit
from offbeat.report.read import Run, read_run
from tests.report.audited_run import BATCH, GROUP, commands, good_run, rows_of, run_of, settings


@pytest.fixture
def good() -> Run:
    return good_run()


# -- honest runs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["multi-version", "sync", "one-step-off", "partial", "in-flight"])
@pytest.mark.parametrize("seed", range(4))
def test_the_real_scheduler_is_acquitted_at_any_moment(seed: int, schedule: str) -> None:
    chosen = settings(name=schedule)
    rows = rows_of(seed, chosen, faults=seed % 2 == 1, kills=seed)
    for length in sorted({*range(0, len(rows), max(1, len(rows) // 15)), len(rows)}):
        found = audit(run_of(rows[:length], chosen))
        assert found.ok, found.evidence
        assert "c3" not in found.promised or found.staleness.max <= chosen.schedule.staleness_bound
        assert found.conservation.issued == sum(
            (found.conservation.live, found.conservation.consumed, found.conservation.quarantined)
        )
    assert found.outcome == "finished"
    assert found.conservation.live == 0
    assert found.trajectories == 10 * BATCH == sum(found.staleness.histogram.values())
    assert found.versions == 10


def test_nothing_happened_yet() -> None:
    found = audit(run_of([], settings()))
    assert found.ok
    assert found.outcome == "running"
    assert found.to_json()["trajectories"] == 0


def test_json_begins_with_the_agreed_keys(good: Run) -> None:
    told = json.loads(json.dumps(audit(good).to_json()))
    first = ["c1_violations", "c2_lost", "c2_consumed_twice", "c3_violations", "trajectories", "staleness"]
    assert list(told)[:8] == [*first, "recomputed", "max_logprob_error"]
    assert list(told["staleness"]) == ["mean", "max", "bound", "histogram"]
    assert [told[key] for key in first[:4]] == [0, 0, 0, 0]
    assert told["recomputed"] == 0
    assert told["max_logprob_error"] is None
    assert told["spans_per_trajectory"] == 1
    assert told["promised"] == [
        "c1",
        "lost",
        "consumed_twice",
        "c3",
        "conservation",
        "versions",
        "rewards",
        "payloads",
        "prompts",
    ]


def test_staleness_and_lengths_by_hand(good: Run) -> None:
    found = audit(good)
    versions = {c.group_id: c.version for c in commands(good, e.Generate)}
    by_iteration = {c.iteration: c for c in commands(good, e.Train)}
    stale = [n - versions[g] for n, train in by_iteration.items() for g in train.group_ids for _ in range(GROUP)]
    assert found.staleness.mean == pytest.approx(sum(stale) / len(stale))
    assert found.staleness.histogram == {s: stale.count(s) for s in sorted(set(stale))}
    trained = [
        good.payloads[group * GROUP + i, attempt].tokens
        for train in by_iteration.values()
        for group, attempts in zip(train.group_ids, train.attempts, strict=True)
        for i, attempt in enumerate(attempts)
    ]
    assert found.lengths.trained == pytest.approx(sum(trained) / len(trained))
    coverage = found.prompts["running-sum"]
    assert (coverage.issued, coverage.consumed) == (len(versions), 10 * BATCH // GROUP)
    assert coverage.quarantined == coverage.issued - coverage.consumed
    assert sum(found.quarantine_reasons.values()) == coverage.quarantined


def test_recomputed_logprobs_count(good: Run) -> None:
    assert audit(good).with_recomputed(5, 5, 1e-6).ok
    assert not audit(good).with_recomputed(5, 5, 0.5).ok
    assert not audit(good).with_recomputed(5, 5, float("inf")).ok
    assert audit(good).with_recomputed(5, 5, 1e-6).to_json()["recomputed"] == 5


def test_evidence_that_was_asked_for_and_cannot_be_had_is_not_ok(good: Run) -> None:
    found = audit(good).with_recomputed(10, 0, None)
    assert not found.ok
    assert any("recomputed 0 trajectories of 10" in line for line in found._numbers())
    assert audit(run_of([], settings())).with_recomputed(10, 0, None).ok, "nothing was consumed yet"


def test_through_the_real_run_log(tmp_path: Path, good: Run) -> None:
    """Written by the run log, half of it without a close, and read back: the same findings."""
    meta = {"settings": good.settings.model_dump_json(), "offbeat_version": "0", "digest_0": "0" * 64}
    log = RunLog.create(tmp_path / "run.sqlite", meta)
    for record in good.records:
        if isinstance(record.event, e.Finished):
            heard = record.event
            span = Span(heard.version, (1,) * heard.tokens, (-0.5,) * heard.tokens)
            log.add_trajectory(Trajectory(heard.trajectory_id, heard.attempt, (span,), heard.finish_reason))
        for command in record.commands:
            if isinstance(command, e.Generate):
                log.add_prompt(command.group_id, Prompt(command.prompt_id, "running-sum", "1+2=", "3", (1, 2, 3, 4)))
        log.record(record.event, record.now, record.commands)
    read = read_run(tmp_path)
    log.close()
    assert len(read.records) == len(good.records)
    assert audit(read).to_json() == audit(good).to_json()


def test_the_audit_does_not_know_the_scheduler() -> None:
    import offbeat.report

    for name in ("audit", "checks", "laws", "splices", "story", "read"):
        text = (Path(offbeat.report.__file__).parent / f"{name}.py").read_text()
        assert "offbeat.flow" not in text
        assert "offbeat.live" not in text
