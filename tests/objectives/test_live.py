"""Objectives in a real run: three policies apart, killed and resumed, with instruments and TensorBoard whole."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from offbeat import events as e
from offbeat.report.read import read_run
from tests.faults.conftest import Trial, finish, kill, noise, policy, trial  # noqa: F401

ITERATIONS = 40


def trained(directory: Path) -> list[e.Trained]:
    return [record.event for record in read_run(directory).records if isinstance(record.event, e.Trained)]


def test_decoupled_ppo_killed_and_resumed_measures_on(trial: Trial) -> None:  # noqa: F811
    chosen = ("learner.objective=decoupled-ppo", "learner.updates_per_iteration=2", "learner.ess_reference=1.0")
    process = trial.begin(*noise(trial), *chosen, f"learner.iterations={ITERATIONS}", "run.keep_versions=1")
    trial.wait_for_version(12, process)
    kill(process)
    result = finish(trial.resume())
    assert (result["iterations"], result["lost"], result["consumed_twice"]) == (ITERATIONS, 0, 0)
    found = trial.verify()
    assert [found[key] for key in ("c1_violations", "c2_lost", "c2_consumed_twice", "c3_violations")] == [0] * 4
    reports = [event.report for event in trained(trial.directory)]
    measured = [report.instruments for report in reports if report.instruments is not None]
    assert len(measured) == ITERATIONS
    assert all(each.drift_from_start is not None for each in measured), "version 0 stays to be measured from"
    assert measured[-1].drift_from_start > 0
    assert all(
        each.g_upd is not None or report.zero_advantage_groups == 4
        for each, report in zip(measured, reports, strict=True)
    )
    assert sum(bool(each.g_upd) for each in measured) > ITERATIONS // 2, "now and then all rewards of a batch are alike"
    assert all(each.cycle_drift is not None for each in measured)
    assert all(each.drift_exponent is not None for each in measured[2:])
    assert any(each.rate_scale < 1 for each in measured)
    assert sum(report.skipped_updates for report in reports) == 0
    assert result["stability"]["drift_from_start"] == measured[-1].drift_from_start
    board = EventAccumulator(str(trial.directory / "tensorboard"), size_guidance={"scalars": 0})
    board.Reload()
    for tag in ("reward/mean", "stability/drift_from_start"):
        assert [point.step for point in board.Scalars(tag)] == list(range(1, ITERATIONS + 1))
