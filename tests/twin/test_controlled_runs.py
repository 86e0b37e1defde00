"""Whole runs with alignment control and with the autopilot, killed and resumed: the run that was never broken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from offbeat import events as e
from offbeat.flow.plan import plan_from
from offbeat.flow.steering import Steering
from offbeat.records import StepAlignment
from offbeat.report.audit import audit
from offbeat.report.page import html
from offbeat.report.read import read_run
from tests.faults.conftest import Trial, finish, kill, noise, policy  # noqa: F401

ALIGNED = (
    "schedule.name=sync",
    "learner.iterations=12",
    "rollout.slots=64",
    "learner.align.mode=cap",
    "learner.align.c_low=0.0",
    "learner.align.c_high=0.9",
    "learner.align.lag_span=2",
)
FLOWN = (
    "schedule.max_staleness=2",
    "learner.iterations=30",
    "learner.learning_rate=0.02",
    "learner.warmup_iterations=0",
    "learner.autopilot=true",
)
"""So high a rate that data two publishes old is far beyond the clip."""


def trained(directory: Path) -> list[e.Trained]:
    return [record.event for record in read_run(directory).records if isinstance(record.event, e.Trained)]


def run(trial: Trial, overrides: Sequence[str], kill_at: int | None = None) -> dict:
    process = trial.begin(*noise(trial), *overrides)
    if kill_at is not None:
        trial.wait_for_version(kill_at, process)
        kill(process)
        process = trial.resume()
    return finish(process)


def test_a_controlled_run_goes_on_bit_for_bit(tmp_path: Path, policy: Path) -> None:  # noqa: F811
    unbroken, broken = Trial(tmp_path / "a" / "run", policy), Trial(tmp_path / "b" / "run", policy)
    for trial in (unbroken, broken):
        trial.directory.parent.mkdir()
    run(unbroken, ALIGNED)
    run(broken, ALIGNED, kill_at=4)
    expected, found = trained(unbroken.directory), trained(broken.directory)
    assert [event.digest for event in found] == [event.digest for event in expected]
    alignments = [event.report.alignment for event in expected]
    assert [event.report.alignment for event in found] == alignments
    known = [a for a in alignments if isinstance(a, StepAlignment)]
    assert len(known) == 12
    assert sum(a.cosine is not None for a in known) >= 10, "cosines are in the log"
    assert sum(a.projected for a in known) >= 1, "control did something"
    assert max(len(a.lags) for a in known) == 4


def test_levers_survive_a_kill_and_reach_the_learner(tmp_path: Path, policy: Path) -> None:  # noqa: F811
    trial = Trial(tmp_path / "run", policy)
    told = run(trial, FLOWN, kill_at=10)
    log = read_run(trial.directory)
    announced = [c for record in log.records for c in record.commands if isinstance(c, e.Steer)]
    assert announced
    assert all(steer.reason for steer in announced)
    steering, folded, rates = Steering(plan_from(log.settings).autopilot), [], {}
    for event in trained(trial.directory):
        rates[event.version - 1] = steering.rate
        folded += steering.saw(event)
    assert folded == announced, "killed or not, levers are the fold of what was trained"
    assert {rates[i] for i in rates} > {1.0}
    final = log.settings.learner.final_learning_rate_share
    for event in trained(trial.directory):
        i = event.report.iteration
        scheduled = 0.02 * (1 - (1 - final) * i / 29)
        assert event.report.learning_rate == pytest.approx(rates[i] * scheduled)
    assert [move["reason"] for move in told["autopilot"]["moves"]] == [steer.reason for steer in announced]
    assert told["autopilot"]["levers"]["learning rate"] == steering.rate
    page = html(log, audit(log))
    assert 'id="figure-autopilot"' in page
    assert announced[0].reason in page.replace("&gt;", ">")
    assert trial.verify()["c3_violations"] == 0
