"""Where new groups start: every free slot is seen, and a publish does not start its batch under the version before."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat import events as e
from offbeat.flow.issuing import NEARLY_FULL
from offbeat.flow.lanes import Health
from offbeat.flow.scheduler import Scheduler
from offbeat.testing.fake_world import EMPTY_REPORT, FakeWorld

from .conftest import Tape, heavy, plan
from .test_orchestrator import fig_7, idle_beside_a_busy_one, of


def test_a_slot_kept_for_what_ends_elsewhere_is_free_again() -> None:
    """The last slot of lane 2 is kept for the response that lane 3 sends; it ends there before it has left."""
    s = fig_7()
    for _ in range(5):
        group = s.ledger.issue(3)
        s.ledger.dispatch(group.members[0], 3, 2, 99.0)
        s.lanes[2].take(group.members[0])
    lone = next(iter(s.lanes[3].held))
    commands = s.handle(e.Trained(4, "", EMPTY_REPORT, 0.0, 1.0), 1.0)
    assert of(e.Move, commands) == [e.Move(3, 2, (lone,))]
    assert s.lanes[2].free == 0
    s.handle(e.Finished(lone, 0, 3, 0, 3, 7, "stop", 0.5, 1.5, 1), 1.5)
    assert s.lanes[2].free == 1
    assert s.vacancies.best(("holds", 3)) is s.lanes[2]


def test_a_lane_that_waits_for_what_ends_elsewhere_goes_on() -> None:
    """Lane 0 took up version 2 to help lane 1, and both responses that were to come ended there: nothing keeps lane 0
    on version 2."""
    s = idle_beside_a_busy_one()
    s.handle(e.Tick(), 6.0)
    (move,) = of(e.Move, s.handle(e.VersionLoaded(0, 2), 6.1))
    first, second = move.trajectory_ids
    assert not of(e.LoadVersion, s.handle(e.Finished(first, 0, 1, 0, 2, 7, "stop", 0.5, 6.2, 1), 6.2))
    commands = s.handle(e.Finished(second, 0, 1, 0, 2, 7, "stop", 0.5, 6.3, 1), 6.3)
    assert [c for c in commands if not isinstance(c, e.Score)] == [e.UnloadVersion(0, 2), e.LoadVersion(0, 3)]


def published(
    lanes: int, slots: int, running: int, limit: int, legacy_fill: bool = True
) -> tuple[Scheduler, list[e.Command]]:
    """What a publish of version 2 leads to on lanes that hold versions 0 and 1 and may hold four: `running` responses
    of version 1 on each, one of version 0, at most `limit` outstanding, no batch in training afterwards."""
    s = Scheduler(
        plan(
            group_size=1, batch_size=4 * lanes, bound=3, outstanding_limit=limit, live_versions=4, lanes=lanes,
            evaluate_every=0, legacy_fill=legacy_fill,
        )
    )  # fmt: skip
    s.evaluation_asked, s.live_versions = {0}, {0, 1}
    s.learner, s.window.newest, s.window.iteration = Health.READY, 1, 1
    for _ in range(4 * lanes):
        group = s.ledger.issue(0)
        s.ledger.dispatch(group.members[0], 0, 0, 99.0)
        s.ledger.finish(group.members[0])
        s.ledger.score(group.members[0])
    s.ledger.take(list(s.ledger.live.values()))
    s.window.iteration = 2
    for place in s.lanes:
        place.clear(Health.READY, 0.0)
        place.slots, place.loaded = slots, {0, 1}
        for version in [0] + [1] * running:
            group = s.ledger.issue(version)
            s.ledger.dispatch(group.members[0], version, place.lane, 99.0)
            place.take(group.members[0])
    return s, s.handle(e.Trained(2, "", EMPTY_REPORT, 0.0, 1.0), 1.0)


@pytest.mark.parametrize("lanes", [1, 3])
def test_what_has_a_slot_under_the_new_version_waits_for_it(lanes: int) -> None:
    s, commands = published(lanes, slots=8, running=3, limit=5 * lanes)
    assert [c.version for c in of(e.LoadVersion, commands)] == [2] * lanes
    assert not of(e.Generate, commands)
    started = [c for lane in range(lanes) for c in of(e.Generate, s.handle(e.VersionLoaded(lane, 2), 1.5))]
    assert [c.version for c in started] == [2] * lanes, "five are outstanding on each lane, as many as may be"


@pytest.mark.parametrize("lanes", [1, 3])
def test_what_has_no_slot_under_the_new_version_waits_unless_a_legacy_fill_is_asked_for(lanes: int) -> None:
    """Twelve may be outstanding for each lane, and there are only eight slots."""
    for legacy_fill in (True, False):
        s, commands = published(lanes, slots=8, running=3, limit=12 * lanes, legacy_fill=legacy_fill)
        assert [c.version for c in of(e.Generate, commands)] == ([1] * 4 * lanes if legacy_fill else [])
        later = [c for lane in range(lanes) for c in of(e.Generate, s.handle(e.VersionLoaded(lane, 2), 1.5))]
        assert [c.version for c in later] == ([] if legacy_fill else [2] * 4 * lanes)


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_lane_that_is_nearly_full_is_refilled_while_weights_load(lanes: int) -> None:
    """One slot of eight is free, not four: it costs a version of age, and nothing that a publish opened up."""
    _, commands = published(lanes, slots=8, running=6, limit=12 * lanes)
    assert [c.version for c in of(e.Generate, commands)] == [1] * lanes


def test_what_a_publish_opens_up_is_spread_over_the_lanes_that_will_have_the_version() -> None:
    """Three lanes with twelve slots free; the first to have the new weights gets its share of eighteen, not twelve."""
    s, _ = published(3, slots=16, running=3, limit=30)
    shares = [len(of(e.Generate, s.handle(e.VersionLoaded(lane, 2), 1.5))) for lane in range(3)]
    assert shares == [6, 6, 6]


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lane_that_never_comes_keeps_no_share(lost: int) -> None:
    s, _ = published(3, slots=16, running=3, limit=30)
    s.handle(e.VersionLoaded(0, 2), 1.5)
    s.handle(e.LaneLost(lost, "gone"), 1.6)
    s.handle(e.VersionLoaded(3 - lost, 2), 1.7)
    assert s.schedule.headroom(s.window) == 0, "what was its share went to the others"


shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**31),
        "lanes": st.integers(1, 5),
        "slots": st.integers(2, 24),
        "bound": st.integers(0, 3),
        "versions": st.integers(1, 4),
        "learn": st.floats(0.1, 20),
        "migration": st.sampled_from(["cache", "prefill", "off"]),
        "evicts": st.booleans(),
        "deaths": st.sampled_from([0.0, 0.004]),
    }
)


@settings(max_examples=150, deadline=None)
@given(shapes)
def test_fresh_start(shape: dict) -> None:  # type: ignore[type-arg]
    """Whatever happens, without legacy fill: a group starts under a version older than one that a ready lane holds or
    loads only on a lane that loads such a one itself and is nearly full. The run finishes, and C3 holds."""
    s = Scheduler(
        plan(
            lanes=shape["lanes"], bound=shape["bound"], live_versions=shape["versions"], migration=shape["migration"],
            evicts=shape["evicts"], rebalance_seconds=5.0, max_attempts=50,
        )
    )  # fmt: skip
    faults = {"lane": shape["deaths"], "learner": shape["deaths"]}
    world = FakeWorld(shape["seed"], shape["lanes"], shape["slots"], heavy, shape["learn"], faults)
    tape = Tape()
    known: set[int] = set()
    for _ in range(100_000):
        if s.stopped is not None:
            break
        event, now = world.next_event(), world.now
        commands = s.handle(event, now)
        tape.record(event, now, commands)
        fresh = [c for c in of(e.Generate, commands) if c.group_id not in known]
        known |= {c.group_id for c in fresh}
        given = Counter(c.lane for c in fresh)
        newest = max((v for x in s.lanes if x.health is Health.READY for v in x.loaded | x.loading), default=-1)
        for command in fresh:
            lane = s.lanes[command.lane]
            if command.version < newest:
                assert max(lane.loading, default=-1) > command.version
                assert lane.free + 2 * given[lane.lane] <= NEARLY_FULL * lane.slots, "before the first of them"
        for command in commands:
            world.perform(command)
    assert s.stopped is not None, "no end: deadlock or livelock"
    assert s.stopped.outcome == "finished", s.stopped.reason
    assert max(tape.staleness()) <= shape["bound"]
