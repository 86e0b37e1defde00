"""Twenty kills of real runs: every kind of process, alone and in pairs, while a version is written or published, while
responses move, while a session starts. After each the run goes on and its audit is clean. `runs/fault_drill.py` does
the same two hundred times at random.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from offbeat.testing.drill import Blow, Drill
from offbeat.testing.subject import Subject

from .conftest import SMALL, Trial, noise
from .test_several_lanes import TAIL

ENDLESS = "learner.iterations=1000000"
ROUNDS: dict[str, tuple[tuple[str, ...], list[Blow]]] = {
    "one lane": (
        (),
        [
            Blow("learner", "checkpoint"),
            Blow("rollout", "publish", then="learner"),
            Blow("main", "checkpoint"),
            Blow("scorer", "any", then="rollout"),
            Blow("main", "any", then="main"),
            Blow("learner", "publish"),
        ],
    ),
    "two lanes, responses move": (
        (*TAIL, "rollout.lanes=2", "schedule.max_versions=1"),
        [
            Blow("rollout", "migration", then="rollout"),
            Blow("main", "migration"),
            Blow("learner", "startup"),
        ],
    ),
    "one-step-off": (("schedule.name=one-step-off",), [Blow("rollout", "any", then="main")]),
    "partial": (("schedule.name=partial",), [Blow("rollout", "publish", then="learner")]),
    "in-flight": (("schedule.name=in-flight",), [Blow("rollout", "publish", then="main")]),
}


def test_the_rounds_are_twenty_kills_of_everything() -> None:
    all_blows = [blow for _, rounds in ROUNDS.values() for blow in rounds]
    assert sum(blow.kills + (blow.moment == "startup") for blow in all_blows) == 20
    struck = {blow.target for blow in all_blows} | {blow.then for blow in all_blows}
    assert struck >= {"main", "rollout", "learner", "scorer"}
    assert {blow.moment for blow in all_blows} == {"any", "checkpoint", "publish", "migration", "startup"}


@pytest.mark.parametrize("name", ROUNDS)
def test_nothing_is_lost_whatever_is_killed(trial: Trial, name: str) -> None:
    overrides, rounds = ROUNDS[name]
    rng = random.Random(os.urandom(8))
    subject = subject_of(trial, *overrides, ENDLESS)
    drill = Drill()
    subject.begin()
    subject.wait_for(lambda: subject.version >= 2)
    for blow in rounds:
        drill.strike(subject, blow, rng)
    subject.end()
    found = subject.audit()
    assert drill.total == sum(blow.kills + (blow.moment == "startup") for blow in rounds)
    assert found.trajectories == 16 * subject.version
    told = trial.verify(recompute=30)
    assert told["ok"]
    assert told["max_logprob_error"] is None or told["max_logprob_error"] < 1e-4
    names = {finding["name"] for finding in trial.explain()["findings"]}
    assert "interrupted" in names
    assert names.isdisjoint({"crashed", "failed", "checkpoint-damaged", "log-damaged"}), names
    if any(blow.target == "rollout" and blow.then != "main" for blow in rounds):
        assert "lane-lost" in names


def subject_of(trial: Trial, *overrides: str) -> Subject:
    task = noise(trial)
    settings = (f"model.path={trial.policy}", *SMALL, *task, *overrides)
    return Subject(trial.directory, settings, trial.environment)


def test_a_main_process_that_stands_still_keeps_its_run_and_blames_nobody(trial: Trial) -> None:
    """Frozen for longer than every lease, then awake: nothing was taken from it, nothing it holds is called dead. A
    lane frozen for as long is replaced, and what wakes up is not heard. A learner that never answers is named.
    """
    import signal
    import time

    subject = subject_of(trial, ENDLESS, "run.lease_seconds=3.0", "run.stall_seconds=7.0", "rollout.max_new_tokens=60")
    subject.begin()
    subject.wait_for(lambda: subject.version >= 2)
    assert subject.process is not None
    subject.process.send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    second = trial.resume()
    time.sleep(5.0)
    subject.process.send_signal(signal.SIGCONT)
    _, err = second.communicate(timeout=60)
    assert (second.returncode, "in use" in err) == (2, True), err
    before = subject.version
    subject.wait_for(lambda: subject.version > before)
    assert subject.query("SELECT count(*) FROM events WHERE kind = 'Suspended'") >= 1
    assert subject.query("SELECT count(*) FROM events WHERE kind IN ('LaneLost', 'LearnerLost')") == 0

    [lane] = subject.workers("rollout")
    lane.suspend()
    subject.wait_for(lambda: not lane.is_running() or subject.workers("rollout") not in ([lane], []))
    assert not lane.is_running(), "a lane that was given up must not live to say something later"
    before = subject.version
    subject.wait_for(lambda: subject.version > before)
    subject.audit()

    [learner] = subject.workers("learner")
    learner.suspend()
    _, err = subject.process.communicate(timeout=90)
    assert subject.process.returncode == 1
    assert "no progress" in err
    assert "learner" in err
    told = {finding["name"]: finding for finding in trial.explain()["findings"]}
    assert "the learner does not answer" in told["failed"]["sentence"]
    assert "lane-lost" in told
    before = subject.version
    subject.resume()
    subject.wait_for(lambda: subject.version > before)
    subject.end()
    subject.audit()


def test_a_slow_channel_costs_time_and_nothing_else(trial: Trial, tmp_path: Path) -> None:
    """A lane that runs a tenth of the time, in jerks: its messages arrive in pieces, whole and in order."""
    import time

    subject = subject_of(trial, ENDLESS)
    subject.begin()
    subject.wait_for(lambda: subject.version >= 2)
    [lane] = subject.workers("rollout")
    before, until = subject.version, time.monotonic() + 4.0
    while time.monotonic() < until:
        lane.suspend()
        time.sleep(0.09)
        lane.resume()
        time.sleep(0.01)
    subject.wait_for(lambda: subject.version > before + 1)
    assert subject.query("SELECT count(*) FROM events WHERE kind = 'LaneLost'") == 0
    subject.end()
    subject.audit()
