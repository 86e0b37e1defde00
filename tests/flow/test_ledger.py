"""Conservation law and exactly-once (C2), as a state machine, and under faults, zombies and resumes."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from offbeat import events as e
from offbeat.errors import InvariantError
from offbeat.flow.ledger import Ledger, Status
from offbeat.flow.scheduler import Scheduler
from offbeat.testing.fake_world import FakeWorld

from .conftest import Tape, drive, heavy, plan


class LedgerMachine(RuleBasedStateMachine):
    """Random moves against a model that is a plain dict: group -> place."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(group_size=2)
        self.place: dict[int, str] = {}
        self.version = 0

    def pick(self, data: st.DataObject, status: Status):
        members = [m for g in self.ledger.live.values() for m in g.members if m.status is status]
        return data.draw(st.sampled_from(members)) if members else None

    @rule(step=st.integers(0, 1))
    def issue(self, step: int) -> None:
        self.version += step
        self.place[self.ledger.issue(self.version).group_id] = "live"

    @rule(data=st.data())
    def dispatch(self, data: st.DataObject) -> None:
        if member := self.pick(data, Status.WAITING):
            self.ledger.dispatch(member, member.group.version, 0, 1.0)

    @rule(data=st.data(), failed=st.booleans())
    def restart(self, data: st.DataObject, failed: bool) -> None:
        if member := self.pick(data, Status.RUNNING):
            self.ledger.restart(member, failed)

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if member := self.pick(data, Status.RUNNING):
            self.ledger.finish(member)

    @rule(data=st.data())
    def score(self, data: st.DataObject) -> None:
        if member := self.pick(data, Status.FINISHED):
            self.ledger.score(member)

    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        if self.ledger.live:
            group = self.ledger.live[data.draw(st.sampled_from(sorted(self.ledger.live)))]
            self.ledger.quarantine(group)
            self.place[group.group_id] = "quarantined"

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        if self.ledger.live:
            group = self.ledger.live[data.draw(st.sampled_from(sorted(self.ledger.live)))]
            self.ledger.evict(group)
            self.place[group.group_id] = "evicted"

    @precondition(lambda self: not self.ledger.training and self.ledger.ready_count())
    @rule(count=st.integers(1, 3))
    def take(self, count: int) -> None:
        groups = list(self.ledger.ready())[:count]
        self.ledger.take(groups)
        self.place.update((g.group_id, "training") for g in groups)

    @precondition(lambda self: self.ledger.training)
    @rule()
    def consume(self) -> None:
        self.ledger.consume()
        self.place.update((g, "consumed") for g, where in self.place.items() if where == "training")

    @invariant()
    def conservation(self) -> None:
        self.ledger.check()
        found = dict.fromkeys(self.ledger.live, "live") | dict.fromkeys(self.ledger.training, "training")
        ended = {group for group in range(self.ledger.issued) if group in self.ledger.ended}
        assert found == {group: where for group, where in self.place.items() if group not in ended}
        assert ended == {group for group, where in self.place.items() if where not in ("live", "training")}
        places = Counter(self.place.values())
        counted = self.ledger.consumed, self.ledger.quarantined, self.ledger.evicted
        assert counted == (places["consumed"], places["quarantined"], places["evicted"])
        live = [g.version for g in self.ledger.live.values()]
        for u in range(self.version + 1):
            assert self.ledger.outstanding(u) == 2 * sum(v <= u for v in live)
        ready = [g for g in self.ledger.live.values() if all(m.status is Status.SCORED for m in g.members)]
        assert Counter(g.group_id for g in self.ledger.ready()) == Counter(g.group_id for g in ready)
        waiting = {m.trajectory_id for g in self.ledger.live.values() for m in g.members if m.status is Status.WAITING}
        assert waiting == set(self.ledger.waiting)


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_conservation_law_is_not_vacuous() -> None:
    ledger = Ledger(2)
    ledger.issue(0)
    ledger.consumed += 1
    with pytest.raises(InvariantError, match="C2"):
        ledger.check()


def test_a_group_cannot_be_consumed_twice() -> None:
    ledger = Ledger(1)
    group = ledger.issue(0)
    ledger.dispatch(group.members[0], 0, 0, 0.0)
    ledger.finish(group.members[0])
    ledger.score(group.members[0])
    ledger.take([group])
    ledger.consume()
    with pytest.raises(InvariantError):
        ledger.take([group])
    ledger.training[group.group_id] = group
    with pytest.raises(InvariantError, match="twice"):
        ledger.consume()


@pytest.mark.parametrize("seed", range(40))
def test_exactly_once_under_faults_and_resumes(seed: int) -> None:
    """Lanes and learner die at random, rewards fail, and the main process is killed at random points and resumed."""
    rng = random.Random(seed)
    p = plan(lanes=2, bound=rng.randint(0, 3), max_attempts=20, max_quarantined_in_a_row=1000, iterations=10)
    faults = {"lane": 0.004, "learner": 0.01, "score": 0.15}
    tape = Tape()
    scheduler = Scheduler(p)
    world = FakeWorld(seed, 2, 5, length=heavy, faults=faults)
    for session in range(1, 6):
        stop = drive(scheduler, world, tape, stop_after=rng.randint(1, 120))
        if stop:
            break
        lost = rng.randint(0, min(2, len(tape.rows) - 1))  # the last events never reached the disk
        rows = tape.rows[: len(tape.rows) - lost]
        scheduler = Scheduler(p)
        for event, now, commands in rows:
            assert scheduler.handle(event, now) == commands, "twin law: folding the log gives the same commands"
        tape = Tape(rows)
        world = FakeWorld(
            seed + 1000 * session, 2, 5, heavy, faults=faults, start=world.now, session=session,
            version=scheduler.window.newest,
        )  # fmt: skip
    else:
        stop = drive(scheduler, world, tape)
    assert stop is not None
    assert stop.outcome == "finished", stop.reason
    consumed = [group for _, group in tape.consumed()]
    assert len(consumed) == len(set(consumed)) == 10 * p.groups_per_batch
    assert all(len(versions) == 1 for versions in tape.versions().values()), "C1"
    assert all(0 <= age <= p.bound for age in tape.staleness()), "C3"
    quarantined = {c.group_id for c in tape.commands() if isinstance(c, e.Quarantine)}
    assert set(tape.versions()) == set(consumed) | quarantined, "C2: nothing lost"
    assert not set(consumed) & quarantined
