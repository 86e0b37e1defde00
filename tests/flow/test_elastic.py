"""Lanes join and leave while a run goes on: the laws hold, nobody is blamed, and what there is is used."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat import events as e
from offbeat.flow.scheduler import Scheduler
from offbeat.testing.fake_world import FakeWorld

from .conftest import Tape, drive, heavy, plan

worlds = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**31),
        "lanes": st.integers(1, 6),
        "slots": st.integers(1, 8),
        "learn": st.floats(0.5, 40),
        "bound": st.integers(0, 3),
        "versions": st.integers(1, 4),
        "leave": st.floats(0.0, 0.01),
        "absence": st.floats(0.0, 400.0),
        "schedule": st.sampled_from(["multi-version", "sync", "one-step-off"]),
    }
)


def run(shape: dict) -> tuple[Scheduler, Tape]:
    bound = {"sync": 0, "one-step-off": 1}.get(shape["schedule"], shape["bound"])
    scheduler = Scheduler(
        plan(
            bound=bound,
            lanes=shape["lanes"],
            live_versions=shape["versions"],
            schedule=shape["schedule"],
            max_attempts=1,
            iterations=8,
            rebalance_seconds=10.0,
            lease_seconds=1e6,
        )
    )
    faults = {"leave": shape["leave"], "absence": shape["absence"]}
    world = FakeWorld(shape["seed"], shape["lanes"], shape["slots"], heavy, shape["learn"], faults)
    tape = Tape()
    stop = drive(scheduler, world, tape)
    assert stop is not None
    assert stop.outcome == "finished", stop.reason
    return scheduler, tape


@settings(max_examples=150, deadline=None)
@given(worlds)
def test_a_run_ends_whoever_comes_and_goes_and_keeps_c1_to_c3(shape: dict) -> None:
    """With `max_attempts` 1 a single loss that were blamed on a lane or a prompt would fail or quarantine something."""
    scheduler, tape = run(shape)
    bound = scheduler.plan.bound
    consumed = [group for _, group in tape.consumed()]
    assert len(consumed) == len(set(consumed)) == 8 * scheduler.plan.groups_per_batch
    assert all(0 <= age <= bound for age in tape.staleness())
    assert all(len(versions) == 1 for versions in tape.versions().values())
    assert not scheduler.ledger.quarantined
    assert all(lane.losses == 0 for lane in scheduler.lanes)


@settings(max_examples=60, deadline=None)
@given(worlds)
def test_every_change_in_the_number_of_lanes_is_an_event(shape: dict) -> None:
    """What the log says of lanes, counted by an outsider, is what the scheduler reckons with: work goes to lanes that
    have joined and not left, and to no other."""
    _, tape = run(shape)
    there: set[int] = set()
    for event, _, commands in tape.rows:
        if isinstance(event, e.LaneReady):
            there.add(event.lane)
        elif isinstance(event, e.LaneLost):
            there.discard(event.lane)
        told = {c.lane for c in commands if isinstance(c, e.Generate | e.LoadVersion | e.Attach | e.Evaluate)}
        assert told <= there


def test_a_lane_that_joins_late_is_given_work_and_one_that_leaves_loses_none() -> None:
    s = Scheduler(plan(lanes=2, batch_size=8, bound=1))
    world = FakeWorld(3, 2, 4, heavy)
    while not s.lanes[1].held:
        drive(s, world, Tape(), stop_after=1)
    held = set(s.lanes[1].held)
    commands = s.handle(e.LaneLost(1, "its node has died", left=True), world.now)
    assert e.StartLane(1, "its node has died") in commands
    again = {i for c in commands if isinstance(c, e.Generate) for i in c.trajectory_ids}
    waiting = set(s.ledger.waiting)
    assert held <= again | waiting
    commands = s.handle(e.LaneReady(1, 4), world.now + 50.0)
    assert any(isinstance(c, e.LoadVersion) and c.lane == 1 for c in commands)
