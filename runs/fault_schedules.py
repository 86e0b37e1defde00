"""Claim: in 10,000 seeded runs in which lanes and the learner die and return at random, under all schedules, nothing is
lost or used twice (C2), and where it is promised one version samples a response (C1) and no batch is too old (C3).

    python runs/fault_schedules.py [--seeds 10000] [--first 0]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from offbeat.flow.schedules import SCHEDULES
from offbeat.sim.simulate import simulate
from offbeat.sim.trials import trial
from offbeat.testing.witness import Witness


def breaches(seed: int) -> tuple[str, int, int, list[str]]:
    """(schedule, events, processes lost, breaches) of a seed."""
    cluster, name = trial(seed)
    schedule, plan = SCHEDULES[name], cluster.plan(name)
    bound = plan.bound if schedule.bounded else None
    witness = Witness(plan.group_size, bound, schedule.splices is not None)
    done = simulate(cluster, name, observers=[witness.saw])
    return name, done.events, witness.losses, witness.closing()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    began, events, losses, wrong = time.perf_counter(), 0, 0, 0
    runs: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.seeds):
        name, count, lost, found = breaches(seed)
        runs[name] += 1
        events, losses = events + count, losses + lost
        if found:
            wrong += 1
            print(f"seed {seed}, {name}: {found[0]}", flush=True)
        if (seed + 1) % 1000 == 0:
            print(
                f"{seed + 1 - options.first} runs, {events:,} events, {losses:,} processes lost, {wrong} with a breach"
            )
    print(f"{dict(runs)}; {events:,} events, {losses:,} processes lost, {wrong} runs with a breach,"
          f" {time.perf_counter() - began:.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()
