"""Several lanes: who moves where and when (I1, I2, I4, I6's bookkeeping), and DORA's Fig. 7 as a golden scenario."""

from __future__ import annotations

from collections import Counter
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from offbeat import events as e
from offbeat.flow.lanes import Health
from offbeat.flow.scheduler import Scheduler
from offbeat.flow.vacancies import Vacancies
from offbeat.testing.fake_world import EMPTY_REPORT, FakeWorld

from .conftest import Tape, drive, heavy, plan


def fig_7() -> Scheduler:
    """DP0 V1:0, DP1 V2:4, DP2 V3:2, DP3 V3:1, eight slots each, one version a lane; V4 is in training."""
    s = Scheduler(
        plan(
            group_size=1,
            batch_size=8,
            bound=3,
            outstanding_limit=24,
            live_versions=1,
            lanes=4,
            evaluate_every=0,
            legacy_fill=True,
        )
    )
    s.newest_asked = 0
    s.learner, s.window.newest, s.window.iteration, s.live_versions = Health.READY, 3, 3, {1, 2, 3}
    for _ in range(8):  # an earlier batch of version 1, now in training
        group = s.ledger.issue(1)
        for member in group.members:
            s.ledger.dispatch(member, 1, 0, 99.0)
            s.ledger.finish(member)
            s.ledger.score(member)
    s.ledger.take(list(s.ledger.live.values()))
    s.window.iteration = 4
    for lane, version, count in [(0, 1, 0), (1, 2, 4), (2, 3, 2), (3, 3, 1)]:
        place = s.lanes[lane]
        place.clear(Health.READY, 0.0)
        place.slots, place.loaded = 8, {version}
        place.touch()
        for _ in range(count):
            group = s.ledger.issue(version)
            s.ledger.dispatch(group.members[0], version, lane, 99.0)
            place.take(group.members[0])
    return s


def of(kind: type, commands: list[e.Command]) -> list[e.Command]:
    return [command for command in commands if isinstance(command, kind)]


def test_golden_fig_7() -> None:
    """V2 stays on one lane (4), V3 is drawn together on one (3, and one new), V4 gets two (8 + 8)."""
    s = fig_7()
    lone = next(iter(s.lanes[3].held))
    commands = s.handle(e.Trained(4, "", EMPTY_REPORT, 0.0, 1.0), 1.0)
    assert of(e.Move, commands) == [e.Move(3, 2, (lone,))]
    assert e.UnloadVersion(0, 1) in commands
    assert of(e.LoadVersion, commands) == [e.LoadVersion(0, 4)]
    assert len(of(e.Generate, commands)) == 1
    assert of(e.Generate, commands)[0].lane == 2, "legacy fill: what is over goes to V3, not to V2, the oldest"
    commands = s.handle(e.Departed(3, (lone,), (0,), (7,), (0,), (0.5,), 2.0), 2.0)
    assert of(e.Attach, commands) == [e.Attach(2, 3, (lone,), (0,))]
    assert of(e.LoadVersion, commands) == [e.LoadVersion(3, 4)]
    assert not of(e.Generate, commands)
    for lane in (0, 3):
        assert len(of(e.Generate, s.handle(e.VersionLoaded(lane, 4), 3.0))) == 8
    assert [dict(Counter(m.version for m in lane.held.values())) for lane in s.lanes] == [
        {4: 8},
        {2: 4},
        {3: 4},
        {4: 8},
    ]
    assert all(lane.loaded == set(lane.using) for lane in s.lanes)


def idle_beside_a_busy_one() -> Scheduler:
    """Lanes 0 and 1 of figure 7, the first with nothing but V3, and no room for new groups."""
    s = fig_7()
    s.plan = s.window.plan = structs.replace(s.plan, outstanding_limit=8, lanes=2, rebalance_seconds=5.0)
    del s.lanes[2:]
    for group in list(s.ledger.live.values())[4:]:
        s.ledger._leave(group)
        s.ledger.issued -= 1
    s.lanes[0].loaded = {3}
    s.vacancies = Vacancies(s.lanes, refills=True)
    return s


def test_an_idle_lane_helps_with_an_older_version_where_there_is_nothing_newer_to_do() -> None:
    """No room for new groups: the lane that became empty takes up V2 instead of what it held, then half of its work."""
    s = idle_beside_a_busy_one()
    commands = s.handle(e.Tick(), 6.0)
    assert [c for c in commands if not isinstance(c, e.Retire)] == [e.UnloadVersion(0, 3), e.LoadVersion(0, 2)]
    commands = s.handle(e.VersionLoaded(0, 2), 6.1)
    (move,) = of(e.Move, commands)
    assert (move.lane, move.to, len(move.trajectory_ids)) == (1, 0, 2)


shapes = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["multi-version", "repack"]),
        "seed": st.integers(0, 2**31),
        "bound": st.integers(1, 3),
        "groups": st.integers(2, 6),
        "lanes": st.integers(2, 6),
        "slots": st.integers(2, 12),
        "learn": st.floats(0.1, 20),
        "versions": st.integers(1, 4),
        "every": st.sampled_from([2.0, 20.0]),
        "legacy_fill": st.booleans(),
        "cache_tokens": st.sampled_from([None, None, 60]),
        "deaths": st.sampled_from([0.0, 0.0, 0.004]),
    }
)


def run(shape: dict, evicts: bool = False) -> tuple[Scheduler, Tape]:
    batch = 2 * shape["groups"]
    scheduler = Scheduler(
        plan(
            schedule=shape["name"],
            batch_size=batch,
            outstanding_limit=(shape["bound"] + 1) * batch,
            bound=shape["bound"],
            lanes=shape["lanes"],
            live_versions=1 if shape["name"] == "repack" else shape["versions"],
            rebalance_seconds=shape["every"],
            legacy_fill=shape["legacy_fill"],
            cache_tokens=shape["cache_tokens"],
            evicts=evicts,
            max_attempts=50,
        )
    )
    faults = {"lane": shape["deaths"], "learner": shape["deaths"]}
    world = FakeWorld(
        shape["seed"],
        shape["lanes"],
        shape["slots"],
        length=heavy,
        learn=shape["learn"],
        faults=faults,
        cache_tokens=shape["cache_tokens"] or inf,
    )
    tape = Tape()
    stop = drive(scheduler, world, tape)
    assert stop is not None
    assert stop.outcome == "finished", stop.reason
    return scheduler, tape


@settings(max_examples=400, deadline=None)
@given(shapes)
def test_moving_loses_nothing_splices_nothing_and_attaches_once(shape: dict) -> None:
    """An outsider's account: who has a trajectory follows from commands and events alone."""
    scheduler, tape = run(shape)
    home: dict[int, int] = {}
    versions: dict[int, int] = {}
    for event, _, commands in tape.rows:
        if isinstance(event, e.Finished):
            if home.get(event.trajectory_id) == event.lane:
                assert event.version == versions[event.trajectory_id], "C1"
                del home[event.trajectory_id]
        elif isinstance(event, e.LaneLost):
            home = {i: lane for i, lane in home.items() if lane != event.lane}
        for command in commands:
            if isinstance(command, e.Generate):
                for i in command.trajectory_ids:
                    assert i not in home, "runs twice"
                    assert versions.setdefault(i, command.version) == command.version, "C1: restarted under another"
                    home[i] = command.lane
            elif isinstance(command, e.Abort):
                for i in command.trajectory_ids:
                    home.pop(i, None)
            elif isinstance(command, e.Attach):
                assert isinstance(event, e.Departed)
                for i in command.trajectory_ids:
                    assert home[i] == command.origin == event.lane, "attached from where it was not"
                    home[i] = command.lane
    assert not home, "still somewhere after the end"
    groups = [group for _, group in tape.consumed()]
    assert len(groups) == len(set(groups)) == 12 * shape["groups"] == scheduler.ledger.issued
    if shape["name"] == "multi-version":
        assert max(tape.staleness()) <= shape["bound"]
    assert not any(lane.held or lane.expected or lane.departing or lane.using for lane in scheduler.lanes)


@settings(max_examples=200, deadline=None)
@given(shapes)
def test_a_lane_holds_no_more_versions_than_it_can_and_decodes_only_those(shape: dict) -> None:
    """I1 and I3: counting what is on its way; with `versions` = 1 it is DORA's lane of a single version."""
    _, tape = run(shape)
    most = 1 if shape["name"] == "repack" else shape["versions"]
    held: dict[int, set[int]] = {lane: set() for lane in range(shape["lanes"])}
    version_of: dict[int, int] = {}
    for event, _, commands in tape.rows:
        if isinstance(event, e.LaneLost):
            held[event.lane].clear()
        for command in commands:
            if isinstance(command, e.StartLane):
                held[command.lane].clear()
            elif isinstance(command, e.UnloadVersion):
                held[command.lane].remove(command.version)
            elif isinstance(command, e.LoadVersion):
                held[command.lane].add(command.version)
                assert len(held[command.lane]) <= most
            elif isinstance(command, e.Generate):
                assert command.version in held[command.lane]
                version_of |= dict.fromkeys(command.trajectory_ids, command.version)
            elif isinstance(command, e.Attach):
                assert {version_of[i] for i in command.trajectory_ids} <= held[command.lane]


SKEWED = {
    "name": "multi-version", "seed": 5, "bound": 2, "groups": 8, "lanes": 4, "slots": 16, "learn": 6.0,
    "versions": 1, "every": 5.0, "legacy_fill": True, "cache_tokens": None, "deaths": 0.0,
}  # fmt: skip


def test_many_versions_a_lane_only_even_the_load() -> None:
    """With room for every version on every lane nobody has to leave: moves go from fuller lanes to emptier ones."""
    _, tape = run(SKEWED | {"versions": 4})
    assert of(e.Move, tape.commands())
    load: Counter[int] = Counter()
    for event, _, commands in tape.rows:
        if isinstance(event, e.Finished):
            load[event.lane] -= 1
        for command in commands:
            if isinstance(command, e.Move):
                assert load[command.lane] > load[command.to]
            if isinstance(command, e.Generate):
                load[command.lane] += len(command.trajectory_ids)
            if isinstance(command, e.Attach):
                load[command.lane] += len(command.trajectory_ids)
                load[command.origin] -= len(command.trajectory_ids)
    assert not +load


def test_pressure_moves_what_is_parked_to_where_there_is_room() -> None:
    """A lane says what it parked; before long that goes on elsewhere under its version, and costs no lease."""
    _, tape = run(SKEWED | {"versions": 3, "cache_tokens": 50, "every": 200.0, "slots": 8})
    said = {i for event in tape.events() if isinstance(event, e.Progress) for i in event.parked}
    assert said
    moved = {i for command in of(e.Move, tape.commands()) for i in command.trajectory_ids}
    assert said & moved
    assert not of(e.Abort, tape.commands())


def test_repack_frees_lanes_for_the_newest_version() -> None:
    scheduler, tape = run(SKEWED | {"name": "repack", "slots": 8})
    assert of(e.Move, tape.commands())
    loads = Counter(command.lane for command in of(e.LoadVersion, tape.commands()))
    assert all(loads[lane] >= 2 for lane in range(4)), "every lane advanced"
    assert scheduler.schedule.bounded is False


def test_golden_fig_5() -> None:
    """LongCat: staleness 2, three versions, batches of six; the sixth to finish fills one, 10 and 12 are too old."""
    s = Scheduler(
        plan(group_size=1, batch_size=6, bound=2, outstanding_limit=18, live_versions=3, evaluate_every=0, evicts=True)
    )
    s.newest_asked, s.live_versions = 0, {0, 1, 2}
    s.learner, s.window.newest, s.window.iteration = Health.READY, 2, 2
    lane = s.lanes[0]
    lane.clear(Health.READY, 0.0)
    lane.slots, lane.loaded = 13, {0, 1, 2}
    version_of = {10: 0, 12: 0, 1: 0, 3: 0, 2: 1, 5: 1, 4: 1, 6: 1, 7: 2, 8: 1, 9: 2, 11: 2, 0: 2}
    for prompt in range(13):
        group = s.ledger.issue(version_of[prompt])
        s.ledger.dispatch(group.members[0], group.version, 0, 99.0)
        lane.take(group.members[0])
    for prompt in (5, 8, 3, 1, 6, 2):
        s.handle(e.Finished(prompt, 0, 0, 0, version_of[prompt], 5, "stop", 0.0, 1.0), 1.0)
        commands = s.handle(e.Scored(prompt, 0, 1.0), 1.0)
    (train,) = of(e.Train, commands)
    assert train.group_ids == (1, 2, 3, 5, 6, 8)
    assert [(c.group_id, c.prompt_id) for c in of(e.Evict, commands)] == [(10, 10), (12, 12)]
    assert {i for c in of(e.Abort, commands) for i in c.trajectory_ids} == {10, 12}
    again = [c.prompt_id for c in of(e.Generate, commands)][:2]
    assert again == [10, 12], "evicted prompts are issued again first"
    assert {c.version for c in of(e.Generate, commands)} == {2}


@settings(max_examples=200, deadline=None)
@given(shapes, st.integers(1, 6), st.integers(0, 3))
def test_evicting_keeps_c3_counts_what_it_costs_and_forgets_no_prompt(shape: dict, lanes: int, bound: int) -> None:
    calm = {"name": "multi-version", "deaths": 0.0, "cache_tokens": None, "every": 5.0}
    shape = shape | calm | {"lanes": lanes, "bound": bound}
    scheduler, tape = run(shape, evicts=True)
    assert max(tape.staleness()) <= shape["bound"]
    evicted = of(e.Evict, tape.commands())
    issued: Counter[int] = Counter()
    for group, prompt in {(c.group_id, c.prompt_id) for c in of(e.Generate, tape.commands())}:
        assert group >= prompt
        issued[prompt] += 1
    assert scheduler.ledger.issued == 12 * shape["groups"] + len(evicted)
    assert not scheduler.ledger.queued_again
    assert issued == Counter(range(max(issued) + 1)) + Counter(c.prompt_id for c in evicted)


def test_nothing_starts_that_is_too_old_already() -> None:
    """Evicting, K = 1: while version 1 is on its way to the lanes and batch 1 in training, version 0 is too old to
    start with: no batch after this one could hold it. (Found by runs/fault_schedules.py.)"""
    s = Scheduler(plan(bound=1, evicts=True, outstanding_limit=16, evaluate_every=0))
    s.window.newest, s.window.iteration = 1, 1
    assert s.schedule.admits(s.window, 0)
    s.window.iteration = 2
    assert not s.schedule.admits(s.window, 0)
    assert s.schedule.admits(s.window, 1)
