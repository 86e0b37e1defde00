"""Findings that are rates or shares wait for enough evidence: of a few iterations, or a few seconds, none is judged."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from offbeat import events as e
from offbeat.diagnosis.timing import FEWEST_SECONDS
from tests.diagnosis.cases import Scorer, case, drive, found, settings, world


def _long_tail(rng: random.Random) -> float:
    return 900.0 if rng.random() < 0.1 else rng.uniform(5, 10)


def _cut_off_late(rows: list[Any]) -> list[Any]:
    """What ends first is not cut off."""
    count, changed = 0, []
    for event, now, deeds in rows:
        if isinstance(event, e.Finished):
            event, count = msgspec.structs.replace(event, finish_reason="length" if count >= 40 else "stop"), count + 1
        changed.append((event, now, deeds))
    return changed


RATES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bound-binds": ({"learn": 10.0, "length": _long_tail}, {"schedule__max_staleness": 2, "rollout__slots": 10}),
    "learner-starved": ({"learn": 2.0}, {}),
    "lanes-starved": ({"learn": 300.0, "length": lambda rng: rng.uniform(5, 10)}, {}),
    "cache-pressure": ({"cache_tokens": 120, "length": lambda rng: rng.uniform(40, 80)}, {}),
    "evictions": (
        {"learn": 10.0, "length": _long_tail},
        {"schedule__at_bound": "evict", "schedule__max_staleness": 1},
    ),
    "slow-reward": ({}, {}),
    "collapse-signature": ({}, {}),
    "zero-advantage": ({}, {}),
    "cut-off": ({}, {"schedule__train_batch_size": 96}),
}
BENT = {
    "collapse-signature": {"policy_lag_kl": 0.4, "entropy": 9.0},
    "zero-advantage": {"zero_advantage_groups": 4, "reward_mean": 0.01},
}


@pytest.mark.parametrize("name", RATES)
def test_no_rate_is_judged_by_what_a_few_iterations_show(name: str) -> None:
    options, changes = RATES[name]
    chosen = settings(**changes)
    acted = Scorer(2.5) if name == "slow-reward" else world(**options)
    rows = drive(acted, chosen, lambda i: BENT.get(name, {}) if i else {})
    if name == "cut-off":
        rows = _cut_off_late(rows)
    assert name in found(case(rows, chosen))
    for iterations in (2, 5):
        ends = [i for i, (event, _, _) in enumerate(rows) if isinstance(event, e.Trained)][:iterations]
        assert name not in found(case(rows[: ends[-1] + 1], chosen)), iterations


def test_no_share_is_judged_by_a_few_seconds_and_a_whole_window_is_enough() -> None:
    chosen = settings()
    rows = [(event, now / 40, deeds) for event, now, deeds in drive(world(learn=2.0), chosen)]
    ends = [i for i, (event, _, _) in enumerate(rows) if isinstance(event, e.Trained)]
    assert rows[ends[29]][1] - rows[ends[0]][1] < FEWEST_SECONDS
    assert "learner-starved" not in found(case(rows[: ends[29] + 1], chosen))
    assert "learner-starved" in found(case(rows, chosen)), "fast runs would never be judged"
