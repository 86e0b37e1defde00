"""Each schedule against the fake world: what it promises holds, what it gives up shows, nothing is lost or stuck."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat import events as e
from offbeat.errors import SettingsError
from offbeat.flow.scheduler import Scheduler
from offbeat.flow.schedules import SCHEDULES
from offbeat.settings import settings_from
from offbeat.settings_sections import SPLICING
from offbeat.testing.fake_world import FakeWorld

from .conftest import Tape, drive, heavy, plan

BOUNDS = {"sync": 0, "one-step-off": 1}
shapes = st.fixed_dictionaries(
    {
        "name": st.sampled_from(sorted(SCHEDULES)),
        "seed": st.integers(0, 2**31),
        "bound": st.integers(0, 3),
        "groups": st.integers(1, 4),
        "lanes": st.integers(1, 3),
        "slots": st.integers(1, 12),
        "learn": st.floats(0.1, 40),
        "versions": st.integers(1, 5),
        "lane_deaths": st.sampled_from([0.0, 0.0, 0.002]),
        "learner_deaths": st.sampled_from([0.0, 0.0, 0.002]),
    }
)


def run(shape: dict) -> tuple[Scheduler, Tape, str]:
    bound = BOUNDS.get(shape["name"], shape["bound"])
    batch = 2 * shape["groups"]
    least = 1 if SCHEDULES[shape["name"]].splices is None else 2
    scheduler = Scheduler(
        plan(
            schedule=shape["name"],
            batch_size=batch,
            outstanding_limit=(bound + 1) * batch,
            bound=bound,
            lanes=shape["lanes"],
            live_versions=max(least, shape["versions"]),
            max_attempts=50,
        )
    )
    world = FakeWorld(
        shape["seed"],
        shape["lanes"],
        shape["slots"],
        length=heavy,
        learn=shape["learn"],
        faults={"lane": shape.get("lane_deaths", 0.0), "learner": shape.get("learner_deaths", 0.0)},
    )
    tape = Tape()
    stop = drive(scheduler, world, tape)
    assert stop is not None
    return scheduler, tape, stop.outcome


@settings(max_examples=300, deadline=None)
@given(shapes)
def test_every_schedule_finishes_and_consumes_everything_once(shape: dict) -> None:
    """C2 for all of them, over lost lanes and learners too: issued = consumed, each once."""
    scheduler, tape, outcome = run(shape)
    assert outcome == "finished"
    groups = [group for _, group in tape.consumed()]
    assert len(groups) == len(set(groups)) == 12 * shape["groups"] == scheduler.ledger.issued


@settings(max_examples=200, deadline=None)
@given(shapes)
def test_schedules_that_keep_c1_never_splice_and_keep_c3(shape: dict) -> None:
    schedule = SCHEDULES[shape["name"]]
    _, tape, _ = run(shape)
    spliced = [event for event in tape.events() if isinstance(event, e.Finished) and event.spans > 1]
    if schedule.splices is None:
        assert not spliced
        assert not any(isinstance(command, e.Pause | e.Continue) for command in tape.commands())
        assert all(len(versions) == 1 for versions in tape.versions().values())
    if schedule.bounded:
        assert all(0 <= age <= BOUNDS.get(shape["name"], shape["bound"]) for age in tape.staleness())


LONG = {"seed": 1, "bound": 2, "groups": 4, "lanes": 2, "slots": 8, "learn": 8.0, "versions": 3}


@pytest.mark.parametrize("name", ["partial", "in-flight"])
def test_splicing_schedules_do_splice(name: str) -> None:
    _, tape, _ = run({"name": name, **LONG})
    spans = [event.spans for event in tape.events() if isinstance(event, e.Finished)]
    assert max(spans) > 1
    continued = [command for command in tape.commands() if isinstance(command, e.Continue)]
    assert {command.keep_cache for command in continued} == {name == "in-flight"}


def test_partial_stands_still_while_it_trains_and_in_flight_never() -> None:
    _, tape, _ = run({"name": "partial", **LONG})
    training = False
    for event, _, commands in tape.rows:
        if isinstance(event, e.Trained):
            training = False
        for command in commands:
            assert not (training and isinstance(command, e.Generate | e.Continue))
            training = training or isinstance(command, e.Train)
    assert any(isinstance(command, e.Pause) for command in tape.commands())
    _, tape, _ = run({"name": "in-flight", **LONG})
    assert not any(isinstance(command, e.Pause) for command in tape.commands())


def test_one_step_off_samples_each_batch_under_one_version_while_the_last_one_trains() -> None:
    """Slots fewer than the batch: later groups of it start after a publish, and still under the batch's version."""
    _, tape, _ = run({"name": "one-step-off", **LONG, "slots": 2, "lanes": 1, "learn": 3.0})
    versions = tape.versions()
    by_iteration: dict[int, set[int]] = {}
    for iteration, group in tape.consumed():
        by_iteration.setdefault(iteration, set()).update(versions[group])
    ages = {iteration: [iteration - version for version in found] for iteration, found in by_iteration.items()}
    assert all(len(found) == 1 for found in ages.values())
    assert ages[0] == [0]
    assert sum(ages[i] == [1] for i in range(1, 12)) >= 9, "a slow weight load may let the next publish in"


def test_standing_still_costs_no_lease() -> None:
    """`partial` with a learner that takes longer than a lease: nothing is restarted for having waited."""
    scheduler = Scheduler(plan(schedule="partial", lanes=2, lease_seconds=80.0))
    tape = Tape()
    stop = drive(scheduler, FakeWorld(3, 2, 8, length=lambda rng: 5 + rng.expovariate(0.1), learn=300.0), tape)
    assert stop is not None
    assert stop.outcome == "finished"
    assert not any(isinstance(command, e.Abort) for command in tape.commands())
    assert sum(isinstance(command, e.StartLane) for command in tape.commands()) == 2


def test_settings_and_flow_agree_on_who_splices() -> None:
    assert {name for name, schedule in SCHEDULES.items() if schedule.splices} == SPLICING
    for name in SPLICING:
        assert settings_from({"schedule": {"name": name, "max_staleness": 0}}).schedule.live_versions == 2
        with pytest.raises(SettingsError, match=r"schedule\.max_versions = 1: .* set 2"):
            settings_from({"schedule": {"name": name, "max_versions": 1}})


def legacy_groups(name: str, lanes: int, legacy_fill: bool) -> int:
    """Groups that were issued under a version older than one which a lane held or was loading by then."""
    found = 0
    for seed in range(20):
        scheduler = Scheduler(plan(schedule=name, lanes=lanes, bound=2, legacy_fill=legacy_fill, live_versions=3))
        tape = Tape()
        stop = drive(scheduler, FakeWorld(seed, lanes, 6, length=heavy, learn=2.0), tape)
        assert stop is not None
        assert stop.outcome == "finished"
        there: set[tuple[int, int]] = set()
        issued: set[int] = set()
        for command in tape.commands():
            if isinstance(command, e.LoadVersion):
                there.add((command.lane, command.version))
            elif isinstance(command, e.UnloadVersion):
                there.discard((command.lane, command.version))
            elif isinstance(command, e.Generate) and command.group_id not in issued:
                issued.add(command.group_id)
                found += command.version < max(version for _, version in there)
    return found


@pytest.mark.parametrize("lanes", [1, 3])
def test_legacy_fill_is_asked_for_whatever_the_number_of_lanes(lanes: int) -> None:
    """Six slots, 24 that may be outstanding: what is over starts under an older version only where that is asked for,
    but for what refills a full lane."""
    seldom, often = (legacy_groups("multi-version", lanes, legacy_fill) for legacy_fill in (False, True))
    assert seldom < often
