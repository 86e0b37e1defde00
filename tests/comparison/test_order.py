"""Who runs in a comparison, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from offbeat.comparison.compare import compare
from offbeat.comparison.contestants import SCHEDULES, Order, lane_splits, thread_splits
from offbeat.errors import RunDirectoryError, SettingsError
from offbeat.flow.schedules import SCHEDULES as KNOWN
from offbeat.settings import Settings


def test_every_schedule_takes_part_by_default() -> None:
    assert set(SCHEDULES) == set(KNOWN)


def test_every_core_has_work_where_it_can() -> None:
    assert {name: thread_splits(name, 2, processes=1) for name in SCHEDULES} == {
        "sync": [1, 2], "partial": [1, 2], "multi-version": [1], "one-step-off": [1], "in-flight": [1],
        "repack": [1],
    }  # fmt: skip
    assert thread_splits("sync", 16, processes=4) == [1, 4]
    assert thread_splits("multi-version", 16, processes=3) == [1, 4]
    assert thread_splits("sync", 1, processes=1) == [1]


def test_repack_gets_lanes_of_its_own_and_as_many_slots_as_the_others() -> None:
    order = Order(None, ("rollout.slots=64",), ("multi-version", "repack"), 20)
    shapes = [
        (c.settings.rollout.lanes, c.settings.rollout.slots, c.settings.rollout.processes) for c in order.contestants()
    ]
    assert shapes == [(1, 64, 1), (2, 32, 1), (4, 16, 1)]
    assert [c.settings.schedule.live_versions for c in order.contestants()] == [3, 1, 1]
    assert lane_splits("repack", Settings.model_validate({"rollout": {"slots": 20}})) == [2]


def test_what_another_schedule_cannot_have_is_fitted() -> None:
    order = Order(None, ("schedule.rollout_batch_size=384", "schedule.max_versions=1"), SCHEDULES, 20)
    found = {c.schedule: c.settings.schedule for c in order.contestants()}
    assert {name: schedule.rollout_batch_size for name, schedule in found.items()} == {
        "multi-version": 384, "sync": 128, "one-step-off": 256, "partial": 384, "in-flight": 384, "repack": 384,
    }  # fmt: skip
    assert [found[name].max_versions for name in ("multi-version", "partial", "in-flight")] == [1, 2, 2]


def test_contestants_differ_in_schedule_threads_and_seed_only() -> None:
    made = Order(None, ("learner.learning_rate=1e-3",), ("multi-version", "sync"), 20, repeats=2).contestants()
    assert [(c.schedule, c.split.threads, c.settings.run.seed) for c in made] == [
        ("multi-version", 1, 0), ("sync", 1, 0), ("sync", 2, 0),
        ("multi-version", 1, 1), ("sync", 1, 1), ("sync", 2, 1),
    ]  # fmt: skip
    base = made[0].settings
    for contestant in made:
        same = contestant.settings.model_copy(update={"schedule": base.schedule, "run": base.run})
        assert same == base
        assert contestant.settings.learner.iterations == 20
        assert contestant.settings.learner.learning_rate == 1e-3
        assert contestant.settings.run.evaluate_every == 0
    assert len({contestant.name for contestant in made}) == len(made)
    assert Settings().schedule.max_staleness == base.schedule.max_staleness


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("{}")
    with pytest.raises(RunDirectoryError, match=f"--out {tmp_path}: exists and is no comparison"):
        compare(tmp_path, Order(None, (), ("sync",), 20), warmup=5, say=lambda words: None)
    assert [file.name for file in tmp_path.iterdir()] == ["data.jsonl"]


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (Order(None, (), ("sync", "sink")), "--schedules sink: unknown schedule"),
        (Order(None, (), ("sync", "sync")), "--schedules sync: named twice"),
        (Order(None, (), ("sync",), iterations=5), "--iterations 5: with --warmup 5"),
        (Order(None, ("run.time_limit_seconds=60",)), "run.time_limit_seconds = 60: .* remove it"),
        (Order(None, ("learner.iterations=5",)), "--set learner.iterations=5: .* use --iterations"),
        (Order(None, ("schedule.name=sync",)), "--set schedule.name=sync: .* use --schedules"),
        (Order(None, (), ("",)), "--schedules : unknown schedule"),
    ],
)
def test_impossible_orders_write_nothing(order: Order, words: str, tmp_path) -> None:
    with pytest.raises(SettingsError, match=words):
        compare(tmp_path / "out", order, warmup=5, say=lambda words: None)
    assert not (tmp_path / "out").exists()
