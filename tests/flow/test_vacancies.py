"""What is kept up to date lane by lane is what a look at all lanes gives, whatever happened to them in between."""

from __future__ import annotations

import random
from math import inf

import pytest

from offbeat.flow.lanes import Health, Lane
from offbeat.flow.ledger import LiveGroup, Member
from offbeat.flow.placement import ready_lanes, roomiest
from offbeat.flow.roomiest import Homes, Scale
from offbeat.flow.vacancies import ANY, Vacancies


def happen(rng: random.Random, lanes: list[Lane], fresh: list[Member]) -> None:
    """Something to one lane, as the scheduler would do it."""
    lane = rng.choice(lanes)
    member = fresh.pop()
    member.version = rng.randrange(4)
    match rng.randrange(9):
        case 0:
            lane.clear(rng.choice([Health.STARTING, Health.READY]), 0.0)
            if lane.health is Health.READY:
                lane.slots = rng.randrange(1, 6)
        case 1 | 2 if lane.health is Health.READY and lane.free > 0:
            lane.take(member)
        case 3 if lane.health is Health.READY and lane.free > 0:
            lane.expect(member)
        case 4 if lane.held:
            lane.let_go(rng.choice(list(lane.held)))
        case 5 if lane.expected:
            lane.expect_no_more(rng.choice(list(lane.expected.values())))
        case 6 if lane.health is Health.READY:
            version = rng.randrange(5)
            lane.drop(version) if version in lane.loaded else lane.begin_loading(version)
        case 7 if lane.loading:
            lane.hold(min(lane.loading))
        case 8:
            lane.stand(still=rng.random() < 0.3)
            if lane.held and rng.random() < 0.5:
                lane.sends(min(lane.held))
        case _:
            pass


def coming(lane: Lane) -> float:
    """The version that a lane's free slots are kept for, infinite for the newest there will be; -1 for none."""
    if lane.loading:
        return max(lane.loading) if max(lane.loading) > max(lane.loaded, default=-1) else -1
    return inf if not lane.loaded or (lane.departing and lane.load == 0) else -1


@pytest.mark.parametrize("refills", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_same_answers_as_a_look_at_all_lanes(seed: int, refills: bool) -> None:
    rng = random.Random(seed)
    lanes = [Lane(i) for i in range(7)]
    watched = Vacancies(lanes, refills)
    fresh = [Member(i, LiveGroup(i, i, 0, 1)) for i in range(700)]
    for _ in range(600):
        happen(rng, lanes, fresh)
        assert {v for v in range(5) if watched.holds(v)} == {
            v for x in ready_lanes(lanes) for v in x.loaded | x.loading
        }
        if rng.random() < 0.5:
            continue
        found = [x for x in ready_lanes(lanes) if x.free > 0 and (refills or x.given < x.slots)]
        newest = max((x.newest for x in found if x.newest is not None), default=None)
        assert watched.newest == newest
        assert watched.best(ANY) is roomiest(found)
        for version in range(5):
            assert watched.best(("holds", version)) is roomiest(found, version)
            assert watched.best(("newest", version)) is roomiest([x for x in found if x.newest == version])
        ready = ready_lanes(lanes)
        assert watched.highest == max((max(x.loaded | x.loading, default=0) for x in ready), default=0)
        for above in (0, 2):
            kept = [max(0, x.slots - x.load - above) for x in ready if coming(x) >= watched.highest]
            assert watched.reserved(above) == sum(kept)


@pytest.mark.parametrize("seed", range(20))
def test_planning_takes_the_lanes_that_a_scan_would(seed: int) -> None:
    rng = random.Random(seed)
    lanes = [Lane(i) for i in range(6)]
    for lane in lanes:
        lane.clear(Health.READY, 0.0)
        lane.slots = rng.randrange(1, 9)
    rng.shuffle(lanes)
    members = [Member(i, LiveGroup(i, i, 0, 1)) for i in range(40)]
    homes, scale = Homes(lanes), Scale(lanes)
    for member in members:
        assert scale.fullest() is max(lanes, key=lambda x: x.load)
        assert scale.emptiest() is min(lanes, key=lambda x: (x.load, x.lane))
        assert homes.free == sum(max(0, x.free) for x in lanes)
        expected = max(lanes, key=lambda x: (x.free, -x.lane))
        taken = homes.take()
        assert taken is expected
        taken.expect(member)
        scale.weigh(taken)
