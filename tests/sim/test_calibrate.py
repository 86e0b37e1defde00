"""Calibration recovers the costs of a run that it made itself, and a run's first half predicts its second."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from offbeat import events as e
from offbeat.cli import app
from offbeat.errors import SettingsError
from offbeat.settings import Settings, settings_from
from offbeat.sim.calibrate import _steady, calibrate, correlation, not_negative
from offbeat.sim.cluster import Cluster
from offbeat.sim.halves import at_pace, interrupted, knowing_the_policy, middle, same_work, second_half
from offbeat.sim.simulate import simulate
from tests.report.scheduled_run import write_scheduled_run
from tests.sim.clusters import cluster


def recorded(growth: float = 0.0, tokens: float = 40, group: int = 4, **training: float) -> tuple[Cluster, list]:  # type: ignore[type-arg]
    about = cluster(
        accelerators=2,
        slots=24,
        decode={"floor_seconds": 0.02, "per_sequence_seconds": 0.002},
        training={"fixed_seconds": 3.0, "per_token_work": 0.002} | training,
        scoring={"seconds": 0.25},
        publish={"kind": "broadcast", "setup_seconds": 0.3},
        lengths={"kind": "lognormal", "median": tokens, "sigma": 0.8, "cap": 150, "correlation": 0.5}
        | {"growth_per_version": growth},
        schedule={"group_size": group, "train_batch_size": 32, "max_versions": 3, "rollout_batch_size": 96},
        run={"iterations": 60, "warmup": 1},
    )
    rows: list = []  # type: ignore[type-arg]
    simulate(about, "multi-version", observers=[lambda event, now, commands: rows.append((now, event, commands))])
    return about, rows


def publishes(rows: list) -> list[float]:  # type: ignore[type-arg]
    return [now for now, event, _ in rows if isinstance(event, e.Trained)]


def publish(rows: list, version: int) -> int:  # type: ignore[type-arg]
    """The row of a version's publish."""
    return next(i for i, (_, event, _) in enumerate(rows) if isinstance(event, e.Trained) and event.version == version)


def measured(rows: list, half: int) -> float:  # type: ignore[type-arg]
    return second_half(publishes(rows), half, 32)


def predicted(about: Cluster, half: int) -> float:
    return second_half([step.ended for step in simulate(about, "multi-version").measures.steps], half, 32)


def settings(group: int = 4) -> Settings:
    return settings_from(
        {
            "rollout": {"slots": 24, "max_new_tokens": 150, "context": 200},
            "schedule": {"group_size": group, "train_batch_size": 32, "max_staleness": 2},
        }
    )


SETTINGS = settings()


def test_costs_are_recovered_and_the_second_half_is_predicted() -> None:
    _, rows = recorded()
    half = middle(rows)
    found = calibrate(rows, SETTINGS, 0.0, "again", half)
    assert found.decode.floor_seconds == pytest.approx(0.02, rel=0.1)
    assert found.decode.per_sequence_seconds == pytest.approx(0.002, rel=0.1)
    assert found.training.per_token_work == pytest.approx(0.002, rel=0.05)
    assert found.training.fixed_seconds == pytest.approx(3.0, rel=0.05)
    assert found.scoring.seconds == pytest.approx(0.25)
    assert found.publish.setup_seconds == pytest.approx(0.3)
    assert found.lengths.correlation == pytest.approx(0.5, abs=0.12)
    assert predicted(found, half) == pytest.approx(measured(rows, half), rel=0.05)


def test_half_law_holds_while_fewer_and_fewer_groups_have_something_to_say() -> None:
    """The second half costs far less than the first, and no iteration of it has been seen."""
    about, rows = recorded(per_signal_token_work=0.01, signal_share=1.1, signal_per_log_iteration=-0.2)
    half = middle(rows)
    found = calibrate(rows, SETTINGS, 0.0, "again", half)
    assert found.training.signal_per_log_iteration == pytest.approx(-0.2, rel=0.25)
    assert found.training.signal(60) == pytest.approx(about.training.signal(60), abs=0.05)
    assert measured(rows, half) > 1.15 * half * 32 / publishes(rows)[half - 1]
    assert predicted(found, half) == pytest.approx(measured(rows, half), rel=0.05)


def test_half_law_holds_while_responses_become_shorter() -> None:
    _, rows = recorded(growth=-0.03)
    half = middle(rows)
    found = calibrate(rows, SETTINGS, 0.0, "again", half)
    assert found.lengths.growth_per_version == pytest.approx(-0.03, abs=0.012)
    assert predicted(found, half) == pytest.approx(measured(rows, half), rel=0.1)


@pytest.mark.parametrize(("whole", "recent", "steady"), [(-0.2, -0.1, -0.1), (0.1, 0.3, 0.1), (-0.2, 0, 0), (-1, 1, 0)])
def test_only_a_trend_that_goes_on_is_continued(whole: float, recent: float, steady: float) -> None:
    assert _steady(whole, recent) == steady


def test_a_machine_that_slowed_down_is_told_from_other_work() -> None:
    """The second half of the same batches, each training twice as long: no other work, half the machine."""
    _, rows = recorded()
    half = middle(rows)
    found = calibrate(rows, SETTINGS, 0.0, "again", half)
    assert same_work(rows, found, 4, half) == pytest.approx(1.0, abs=0.02)
    late, slower = 0.0, []
    for (before, *_), (now, event, commands) in pairwise([rows[0], *rows]):
        done = sum(isinstance(event, e.Trained) for _, event, _ in slower)
        late += (now - before) if done >= half else 0.0
        slower.append((now + late, event, commands))
    assert same_work(slower, found, 4, half) == pytest.approx(2.0, abs=0.04)


def joined(first: list, other: list, half: int) -> list:  # type: ignore[type-arg]
    """The first half of one run, then the second of another."""
    cut, there = publish(first, half), publish(other, half)
    late = first[cut][0] - other[there][0]
    return first[: cut + 1] + [(now + late, event, commands) for now, event, commands in other[there + 1 :]]


SIGNAL = {"per_signal_token_work": 0.01, "signal_share": 1.1, "signal_per_log_iteration": -0.2}


@pytest.mark.parametrize(
    ("one", "then"),
    [
        ({}, {"tokens": 27}),
        (SIGNAL, SIGNAL | {"signal_share": 0.8}),
        (SIGNAL | {"growth": -0.01}, SIGNAL | {"growth": -0.01, "signal_share": 0.8}),
    ],
    ids=["shorter", "less to learn from", "less to learn from while responses become shorter"],
)
def test_a_policy_that_did_not_go_on_as_before_is_told_from_a_wrong_cost(one: dict, then: dict) -> None:  # type: ignore[type-arg]
    """Groups of two: with few groups in a batch the share of those that teach something is known in coarse steps."""
    _, first = recorded(group=2, **one)
    half = middle(first)
    rows = joined(first, recorded(group=2, **then)[1], half)
    found = calibrate(rows, settings(2), 0.0, "again", half)
    assert predicted(found, half) < 0.9 * measured(rows, half)
    assert same_work(rows, found, 2, half) == pytest.approx(1.0, abs=0.05)
    known = knowing_the_policy(rows, found, 2, half)
    assert predicted(known, half) == pytest.approx(measured(rows, half), rel=0.05)


def test_of_a_machine_that_slowed_down_the_rest_is_predicted_at_its_pace() -> None:
    about, _ = recorded()
    slow = predicted(at_pace(about, 2.0), 30)
    assert 0.4 < slow / predicted(about, 30) < 0.75
    assert at_pace(about, 2.0).training.seconds_at(1, 100, 1.0) == 2 * about.training.seconds_at(1, 100, 1.0)


def test_time_that_the_run_stood_still_does_not_count() -> None:
    """Suspended for a minute in its second half, and taken up again in its first."""
    _, rows = recorded()
    half = middle(rows)
    stood = []
    for now, event, commands in rows:
        version = event.version if isinstance(event, e.Trained) else 0
        stood.append((now + 60 * len(interrupted(stood)), event, commands))
        if version in (5, half + 4):
            pause = e.Suspended(60.0) if version > half else e.Opened(1)
            stood.append((stood[-1][0] + 60, pause, ()))
    assert interrupted(stood) == {6, half + 5}
    found = second_half(publishes(stood), half, 32, interrupted(stood))
    assert found == pytest.approx(measured(rows, half), rel=0.1)
    assert second_half(publishes(stood), half, 32) < 0.9 * found
    about = calibrate(stood, SETTINGS, 0.0, "again", half)
    assert about.training.fixed_seconds == pytest.approx(3.0, rel=0.1)


def test_a_first_half_that_stood_still_nearly_throughout_is_refused() -> None:
    _, rows = recorded()
    short = rows[: publish(rows, 8) + 1]

    def stopped(versions: set[int]) -> list:  # type: ignore[type-arg]
        found = []
        for now, event, commands in short:
            if isinstance(event, e.Trained) and event.version in versions:
                found.append((now, e.Suspended(60.0), ()))
            found.append((now, event, commands))
        return found

    calibrate(stopped({2}), SETTINGS, 0.0, "again", 4)
    with pytest.raises(SettingsError, match="stood still"):
        calibrate(stopped({2, 3}), SETTINGS, 0.0, "again", 4)


def test_where_nothing_finished_after_the_middle_lengths_stay_those_of_the_first_half() -> None:
    _, rows = recorded()
    half = middle(rows)
    found = calibrate(rows, SETTINGS, 0.0, "again", half)
    cut = publish(rows, half)
    late = [row for row in rows[cut:] if not isinstance(row[1], e.Finished)]
    assert knowing_the_policy(rows[:cut] + late, found, 4, half).lengths == found.lengths


def test_what_comes_after_the_middle_is_not_looked_at() -> None:
    _, rows = recorded()
    half = middle(rows)
    cut = publish(rows, half)
    late = [(now * 3, event, commands) for now, event, commands in rows[cut + 1 :]]
    assert calibrate(rows[: cut + 1] + late, SETTINGS, 0.0, "x", half) == calibrate(rows, SETTINGS, 0.0, "x", half)


def test_too_short_a_run_is_refused() -> None:
    with pytest.raises(SettingsError, match="at least 8"):
        middle(recorded()[1][:200])


def test_least_squares_without_negative_terms() -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(50), rng.uniform(1, 9, 50)])
    assert not_negative(x, x @ np.array([2.0, 3.0])) == pytest.approx((2.0, 3.0))
    assert not_negative(x, x @ np.array([-5.0, 3.0]))[0] == 0.0
    assert not_negative(x, x @ np.array([9.0, -0.1]))[1] == 0.0
    three = np.column_stack([x, rng.uniform(0, 1, 50)])
    assert not_negative(three, three @ np.array([1.0, 2.0, 3.0])) == pytest.approx((1.0, 2.0, 3.0))
    assert not_negative(three, -np.ones(50)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_correlation_is_estimated(rho: float) -> None:
    rng = np.random.default_rng(1)
    z = np.sqrt(rho) * rng.standard_normal((800, 1)) + np.sqrt(1 - rho) * rng.standard_normal((800, 6))
    assert correlation(np.round(50 * np.exp(z)).astype(int).tolist()) == pytest.approx(rho, abs=0.05)


def test_the_command_calibrates_on_a_run_directory(tmp_path: Path) -> None:
    """A recorded directory: fitted, replayed with the same commands, its second half predicted."""
    directory = write_scheduled_run(tmp_path / "run", 5)
    done = CliRunner().invoke(
        app, ["simulate", "--calibrate", str(directory), "--schedules", "multi-version", "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["calibration"]
    assert found["twin"]["same"] is True
    assert found["twin"]["events"] > 100
    assert found["second_half_measured"] > 0
    assert {"error", "error_knowing_the_policy", "error_knowing_policy_and_pace", "same_work"} <= found.keys()
