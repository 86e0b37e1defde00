"""What the scheduler remembers does not grow with a run, whatever is lost, quarantined or evicted in it."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat import events as e
from offbeat.errors import InvariantError
from offbeat.flow.ended import Ended
from offbeat.flow.scheduler import Scheduler
from offbeat.testing.fake_world import FakeWorld

from .conftest import heavy, plan

CASES: dict[str, dict[str, Any]] = {
    "multi-version": {},
    "evict": {"evicts": True, "max_attempts": 3},
    "several lanes": {"lanes": 3, "live_versions": 1},
    "in-flight": {"schedule": "in-flight"},
    "sync": {"schedule": "sync", "bound": 0, "outstanding_limit": 8, "live_versions": 1},
}


@given(st.integers(0, 60).flatmap(lambda n: st.permutations(range(n))))
def test_ended_is_the_plain_set_of_all_that_ended(order: list[int]) -> None:
    ended, oracle = Ended(), set[int]()
    for number in order:
        ended.add(number)
        oracle.add(number)
        assert len(ended) == len(oracle)
        assert [each in ended for each in range(-1, 62)] == [each in oracle for each in range(-1, 62)]
        with pytest.raises(InvariantError):
            ended.add(number)
        first_alive = next(each for each in range(62) if each not in oracle)
        assert len(ended.beyond) == sum(each > first_alive for each in oracle), "no more than ended while one lived"


def entries(root: object) -> int:
    """Entries of all containers that can be reached from an object, by whatever attributes."""
    seen: set[int] = set()
    todo, count = [root], 0
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, int | float | str | bytes | type | FunctionType | None):
            continue
        seen.add(id(each))
        if isinstance(each, Mapping):
            todo += [*each.keys(), *each.values()]
            count += len(each)
        elif hasattr(each, "__len__") and hasattr(each, "__iter__"):
            todo += list(each)
            count += len(each)
        slots = [name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ())]
        todo += [getattr(each, name) for name in slots if hasattr(each, name)]
        todo += list(getattr(each, "__dict__", {}).values())
    return count


@pytest.mark.parametrize("case", CASES)
def test_flat_however_long_the_run(case: str) -> None:
    lanes = CASES[case].get("lanes", 2)
    chosen = {"lanes": lanes, "iterations": 10**6, "max_quarantined_in_a_row": 10**6, "evaluate_every": 3} | CASES[case]
    scheduler = Scheduler(plan(**chosen))
    world = FakeWorld(7, lanes, 6, heavy, faults={"lane": 0.001, "learner": 0.002, "score": 0.1})
    sizes: list[int] = []
    while scheduler.window.newest < 400:
        event = world.next_event()
        for command in scheduler.handle(event, world.now):
            world.perform(command)
        assert scheduler.stopped is None, scheduler.stopped
        if isinstance(event, e.Trained):
            sizes.append(entries(scheduler))
    quarter = len(sizes) // 4
    assert max(sizes[-quarter:]) <= 1.25 * max(sizes[quarter : 2 * quarter])
    assert len(scheduler.ledger.ended) > 400 * scheduler.plan.groups_per_batch
