"""Whole runs on several lanes: responses move with their keys and values, and every promise is kept."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing

import msgspec
import pytest

from offbeat.events import Command

from .conftest import Trial, finish, noise

N = 16
TAIL = (
    f"learner.iterations={N}",
    "rollout.max_new_tokens=300",
    "rollout.context=360",
    "rollout.slots=8",
    "schedule.rebalance_seconds=0.5",
)
LAYOUTS = {
    "four lanes in one process, one version each": (
        "rollout.lanes=4", "rollout.lanes_per_process=4", "schedule.max_versions=1",
    ),
    "two processes, one version each": ("rollout.lanes=2", "schedule.max_versions=1"),
    "computed again where it arrives": ("rollout.lanes=3", "rollout.lanes_per_process=3", "schedule.max_versions=1",
                                        "schedule.migration=prefill"),
    "repacked": ("rollout.lanes=4", "rollout.lanes_per_process=4", "schedule.name=repack"),
    "evicting": ("rollout.lanes=2", "rollout.lanes_per_process=2", "schedule.at_bound=evict",
                 "schedule.max_staleness=1", "rollout.slots=32"),
    "short of room": ("rollout.lanes=2", "rollout.lanes_per_process=2", "rollout.cache_tokens=368"),
}  # fmt: skip


def commands(trial: Trial) -> Counter[str]:
    with closing(sqlite3.connect(trial.directory / "run.sqlite")) as log, log:
        rows = log.execute("SELECT commands FROM events").fetchall()
    return Counter(type(c).__name__ for (row,) in rows for c in msgspec.json.decode(row, type=list[Command]))


def parked(trial: Trial) -> int:
    with closing(sqlite3.connect(trial.directory / "run.sqlite")) as log, log:
        rows = log.execute("SELECT body FROM events WHERE kind = 'Progress'").fetchall()
    return sum(len(msgspec.json.decode(row)["parked"]) for (row,) in rows)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_whole_run_keeps_its_promises_and_its_log_probs(trial: Trial, layout: str) -> None:
    """Recomputed under the stored weights of its version: a response that moved is what it would have been."""
    result = finish(trial.begin(*noise(trial), *TAIL, *LAYOUTS[layout]))
    assert (result["iterations"], result["lost"], result["consumed_twice"]) == (N, 0, 0)
    found = trial.verify(200)
    assert found["ok"], found
    assert found["trajectories"] == 16 * N
    assert found["max_logprob_error"] < 1e-4
    done = commands(trial)
    assert done["Move"] >= done["Attach"] > 0 or layout in ("evicting", "short of room")
    assert (done["Evict"] > 0) == (layout == "evicting")
    assert found["conservation"]["evicted"] == 4 * done["Evict"]
    assert (parked(trial) > 0) == (layout == "short of room")
    assert not list((trial.directory / "parcels").glob("*")), "a parcel was left behind"
