"""The summary counts what a slow reader of the log counts; what does not exist yet is null."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from offbeat import events as e
from offbeat.records import Gap, Mismatch
from offbeat.report.audit import audit
from offbeat.report.read import Run, read_run
from offbeat.report.story import Story
from offbeat.report.summary import closing_words, mismatch, summary
from offbeat.report.tally import clock
from tests.report.simulated_run import EditableRun, simulated_run

KEYS = [
    "run", "outcome", "iterations", "version", "exact_match_before", "exact_match_after",
    "exact_match_sampled_before", "exact_match_sampled_after", "trajectories", "trajectories_per_second",
    "tokens_per_second", "staleness", "stability", "mismatch", "autopilot", "lost", "consumed_twice", "wall_seconds",
    "report",
]  # fmt: skip


def written(made: EditableRun, directory: Path) -> Run:
    return read_run(made.write(directory))


def until(made: EditableRun, length: int) -> EditableRun:
    finished = {(r.event.trajectory_id, r.event.attempt) for r in made.rows[:length] if isinstance(r.event, e.Finished)}
    payloads = {k: p for k, p in made.payloads.items() if k in finished}
    return EditableRun(made.settings, made.rows[:length], payloads, made.rewards, made.prompt_ids)


def test_against_a_count_by_hand(tmp_path: Path) -> None:
    made = simulated_run()
    found = summary(written(made, tmp_path))
    size = made.settings.schedule.group_size
    trains = {c.iteration: c for row in made.rows for c in row.commands if isinstance(c, e.Train)}
    tokens = sum(
        len(made.payloads[group * size + i, attempt].token_ids) + len(made.prompt_ids[group])
        for train in trains.values()
        for group, attempts in zip(train.group_ids, train.attempts, strict=True)
        for i, attempt in enumerate(attempts)
    )
    first = min(row.now for row in made.rows if any(isinstance(c, e.Generate) for c in row.commands))
    last = max(row.now for row in made.rows if isinstance(row.event, e.Trained))
    results = {row.event.version: row.event for row in made.rows if isinstance(row.event, e.Evaluated)}
    assert list(found) == KEYS
    assert (found["iterations"], found["version"]) == (12, 12)
    assert found["trajectories"] == 12 * 16
    assert found["trajectories_per_second"] == pytest.approx(12 * 16 / (last - first))
    assert found["tokens_per_second"] == pytest.approx(tokens / (last - first))
    assert found["exact_match_before"] == results[0].exact_match_greedy
    assert found["exact_match_after"] == results[12].exact_match_greedy
    assert found["exact_match_sampled_before"] == results[0].exact_match_sampled
    assert found["exact_match_sampled_after"] == results[12].exact_match_sampled
    assert found["staleness"]["bound"] == 2
    measured = [row.event.report.instruments for row in made.rows if isinstance(row.event, e.Trained)]
    assert found["stability"]["g_upd"] == pytest.approx(sum(m.g_upd for m in measured) / 12)
    assert found["stability"]["drift_from_start"] == measured[-1].drift_from_start
    assert found["stability"]["cycle_drift"] == 0.2
    assert found["staleness"]["max"] <= 2
    assert (found["lost"], found["consumed_twice"]) == (0, 0)
    assert found["wall_seconds"] == made.rows[-1].now
    assert found["run"] == str(tmp_path)


def test_report_is_named_once_it_is_there(tmp_path: Path) -> None:
    run = written(simulated_run(), tmp_path)
    assert summary(run)["report"] is None
    (tmp_path / "report.html").write_text("<p>")
    assert summary(run)["report"] == str(tmp_path / "report.html")


def test_an_empty_log_is_all_null(tmp_path: Path) -> None:
    made = simulated_run()
    found = summary(written(EditableRun(made.settings), tmp_path))
    nothing = {key for key, value in found.items() if value is None}
    assert nothing == {key for key in KEYS if key.startswith("exact") or key.endswith("second")} | {
        "wall_seconds", "report", "stability", "mismatch", "autopilot",
    }  # fmt: skip
    assert found["staleness"] == {"mean": None, "max": None, "bound": 2}
    assert found["trajectories"] == found["iterations"] == found["version"] == 0
    json.dumps(found, allow_nan=False)


def test_every_prefix_is_a_summary(tmp_path: Path) -> None:
    """After each of some moments: no exception, no NaN, counts never fall, C2 holds."""
    made, before = simulated_run(), 0
    for length in range(0, len(made.rows), 40):
        found = summary(written(until(made, length), tmp_path))
        json.dumps(found, allow_nan=False)
        assert found["trajectories"] >= before
        assert (found["trajectories_per_second"] is None) == (found["trajectories"] == 0)
        assert found["lost"] == found["consumed_twice"] == 0
        assert closing_words(found)
        before = found["trajectories"]


def test_tokens_are_unknown_where_a_payload_is_missing(tmp_path: Path) -> None:
    made = simulated_run(payloads=False)
    found = summary(written(made, tmp_path))
    assert found["tokens_per_second"] is None
    assert found["trajectories_per_second"] > 0


def test_lost_and_twice_are_those_of_the_audit(tmp_path: Path) -> None:
    made = simulated_run()
    place = made.command(e.Train, 0, lambda c: isinstance(c, e.Train) and c.iteration == 7)
    earlier = made.rows[made.command(e.Train)[0]].commands[made.command(e.Train)[1]]
    assert isinstance(earlier, e.Train)
    made.replace_command(place, group_ids=earlier.group_ids, attempts=earlier.attempts)
    run = written(made, tmp_path)
    found = summary(run, audit(run))
    assert found == summary(run)
    assert found["lost"] == found["consumed_twice"] == 16
    assert "16 lost, 16 consumed twice" in closing_words(found)


def result(**changes: Any) -> dict[str, Any]:
    return {
        "run": "out/r", "outcome": "finished", "iterations": 400, "version": 400, "exact_match_before": 0.15,
        "exact_match_after": 0.62, "exact_match_sampled_before": 0.12, "exact_match_sampled_after": 0.58,
        "trajectories": 25600, "trajectories_per_second": 61.23, "tokens_per_second": 4321.0,
        "staleness": {"mean": 1.24, "max": 2, "bound": 2}, "lost": 0, "consumed_twice": 0, "wall_seconds": 425.0,
        "report": "out/r/report.html", **changes,
    }  # fmt: skip


def test_closing_words() -> None:
    assert closing_words(result()).splitlines() == [
        "held-out exact match 0.150 -> 0.620 (+0.470); sampled 0.120 -> 0.580",
        "400 iterations, 25600 trajectories in 7:05",
        "61.2 trajectories/s, 4,321 tokens/s",
        "staleness mean 1.24, max 2, bound 2",
        "report: out/r/report.html",
    ]


def test_closing_words_leave_out_what_is_not_known() -> None:
    half = closing_words(result(exact_match_after=None, exact_match_sampled_after=None, tokens_per_second=None))
    assert half.splitlines()[0] == "held-out exact match 0.150 before training"
    assert "61.2 trajectories/s\n" in half
    assert "0.620 after training" in closing_words(result(exact_match_before=None, exact_match_sampled_before=None))
    nothing = result(
        exact_match_before=None, exact_match_after=None, trajectories_per_second=None, tokens_per_second=None,
        staleness={"mean": None, "max": None, "bound": 2}, wall_seconds=None, report=None, iterations=0, trajectories=0,
    )  # fmt: skip
    assert closing_words(nothing) == "0 iterations, 0 trajectories"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (187, "3:07"), (7389, "2:03:09"), (-1, "0 s")]
)
def test_clock(seconds: float, words: str) -> None:
    assert clock(seconds) == words


def test_mismatch_is_weighted_by_the_tokens_it_was_measured_on() -> None:
    parts = [Mismatch(10, Gap(0.0, 0.0, 0.0), Gap(0.1, 0.4, 0.2)), None, Mismatch(30, Gap(0.4, 0.8, 0.4), Gap(0, 0, 0))]
    publishes = [(0, 0.0, SimpleNamespace(report=SimpleNamespace(mismatch=part))) for part in parts]
    found = mismatch(cast(Story, SimpleNamespace(publishes=publishes)))
    assert found is not None
    assert found["tokens"] == 40
    assert found["engine_error"] == pytest.approx({"mean": 0.3, "p99": 0.6, "beyond": 0.3})
    assert found["policy_lag"] == pytest.approx({"mean": 0.025, "p99": 0.1, "beyond": 0.05})
    assert mismatch(cast(Story, SimpleNamespace(publishes=publishes[1:2]))) is None
