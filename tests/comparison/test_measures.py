"""The numbers of a comparison, against what can be counted from the log in another way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from offbeat import events as e
from offbeat.comparison.contestants import SCHEDULES, Contestant, Split
from offbeat.comparison.measures import Measures, measure, overlap, pauses, reward_at
from offbeat.comparison.result import entries, equal_wall_clock, speedup, to_json
from offbeat.errors import RunDirectoryError
from offbeat.report.read import Run, read_run
from offbeat.settings import Settings
from tests.report.editable_run import small_settings
from tests.report.scheduled_run import write_scheduled_run

WARMUP = 3


def made(schedule: str, folder: Path) -> Run:
    settings = small_settings(
        run__lease_seconds=300, run__stall_seconds=4000, schedule__name=schedule, learner__iterations=30
    )
    return read_run(write_scheduled_run(folder / "run", settings=settings))


@pytest.fixture(scope="module", params=SCHEDULES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made(request.param, tmp_path_factory.mktemp(request.param))


def test_rates_count_publishes_of_the_steady_part(run: Run) -> None:
    measures = measure(run, WARMUP)
    published = [record.event for record in run.records if isinstance(record.event, e.Trained)]
    tail = run.settings.schedule.staleness_bound + 1
    first, last = published[WARMUP - 1].ended, published[-1 - tail].ended
    count = sum(first < trained.ended <= last for trained in published)
    batch = run.settings.schedule.train_batch_size
    assert measures.trajectories_per_second == pytest.approx(batch * count / (last - first))
    assert measures.iteration_seconds == pytest.approx((last - first) / count)
    assert measures.learner_seconds + measures.rollout_only_seconds == pytest.approx(measures.iteration_seconds)
    assert measures.bound >= measures.trajectories_per_second
    assert measures.reward_final == pytest.approx(fmean(t.report.reward_mean for t in published[-3:]))


def test_shares_are_shares_and_spans_tell_schedules_apart(run: Run) -> None:
    measures, name = measure(run, WARMUP), run.settings.schedule.name
    assert 0 < measures.slots_busy <= 1
    assert 0 < measures.bubble < 1
    assert (measures.spans_per_trajectory > 1) == (name in {"partial", "in-flight"})
    assert bool(pauses(run, run.wall_seconds)) == (name == "partial")
    assert measures.staleness_max == {"sync": 0, "one-step-off": 1}.get(name, measures.staleness_max)
    assert list(measures.ends) == sorted(measures.ends)


def test_prompts_and_lengths_are_counted_by_data_set(run: Run) -> None:
    (found,) = measure(run, WARMUP).datasets.values()
    trained = {
        group for record in run.records for c in record.commands if isinstance(c, e.Train) for group in c.group_ids
    }
    finished = {r.event.trajectory_id: r.event.tokens for r in run.records if isinstance(r.event, e.Finished)}
    size = run.settings.schedule.group_size
    assert found.trained == len(trained) <= found.issued
    assert found.finished_length == pytest.approx(fmean(finished.values()))
    assert found.trained_length == pytest.approx(fmean(finished[g * size + i] for g in trained for i in range(size)))


def test_standing_still_is_not_decoding(tmp_path: Path) -> None:
    """The slow way: look at every slot at many moments, under the schedule that pauses."""
    run = made("partial", tmp_path)
    measures = measure(run, WARMUP)
    published = [record.event for record in run.records if isinstance(record.event, e.Trained)]
    first, last = published[WARMUP - 1].ended, published[-2 - run.settings.schedule.staleness_bound].ended
    finished = [record.event for record in run.records if isinstance(record.event, e.Finished)]
    still = pauses(run, last)
    seen, moments = 0, 2000
    for i in range(moments):
        now = first + (i + 0.5) / moments * (last - first)
        for event in finished:
            paused = any(start <= now < end for start, end in still[event.lane])
            seen += event.started <= now < event.ended and not paused
    slots = run.settings.rollout.lanes * run.settings.rollout.slots
    assert measures.slots_busy == pytest.approx(seen / (moments * slots), abs=0.01)


def test_too_short_a_run_is_refused(run: Run) -> None:
    with pytest.raises(RunDirectoryError, match="leave no steady part"):
        measure(run, 28)


def test_overlap() -> None:
    assert overlap((0, 2), (1, 3)) == 1
    assert overlap((0, 1), (2, 3)) == 0


BASE = Measures(
    100.0, 1000.0, 1.0, 0.5, 0.5, 200.0, 0.9, 0.8, 1.0, 2, 0.5, 1.0, 0, 9.0, 9.0, {}, (0.1, 0.3), (1.0, 2.0)
)


def contestant(schedule: str, threads: int, repeat: int) -> Contestant:
    return Contestant(schedule, Split(threads), repeat, (), Settings())


def test_the_faster_split_counts_and_ratios_are_paired() -> None:
    measured = {
        contestant("multi-version", 1, 0): BASE,
        contestant("sync", 1, 0): replace(BASE, trajectories_per_second=40.0),
        contestant("sync", 2, 0): replace(BASE, trajectories_per_second=50.0, ends=(3.0, 4.0)),
        contestant("multi-version", 1, 1): replace(BASE, trajectories_per_second=60.0),
        contestant("sync", 1, 1): replace(BASE, trajectories_per_second=30.0),
        contestant("sync", 2, 1): replace(BASE, trajectories_per_second=20.0, ends=(1.5, 4.0)),
    }
    first, second = entries(measured)
    assert (first.schedule, second.schedule, second.split.threads) == ("multi-version", "sync", 1)
    assert speedup(first, second) == pytest.approx((100 / 40 + 60 / 30) / 2)
    assert first.interval("trajectories_per_second") == (60.0, 100.0)
    found = to_json([first, second], measured)
    assert set(found["schedules"]) == {"multi-version", "sync"}
    assert found["schedules"]["sync"]["trajectories_per_second"] == 35.0
    assert len(found["splits"]) == 6


def test_reward_at_equal_wall_clock_is_the_recent_mean_by_then() -> None:
    assert reward_at(BASE, 1.5) == 0.1
    assert reward_at(BASE, 2.0) == pytest.approx(0.2)
    assert reward_at(BASE, 0.5) is None
    slow = replace(BASE, ends=(3.0, 4.0))
    found = entries({contestant("multi-version", 1, 0): BASE, contestant("sync", 1, 0): slow})
    assert equal_wall_clock(found) == {"multi-version": pytest.approx(0.2), "sync": None}
