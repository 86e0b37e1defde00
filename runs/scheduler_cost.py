"""Claim: one scheduler decision costs at most 50 us at 64 lanes and 4,096 outstanding trajectories, and its cost
grows no faster than log n in outstanding trajectories.

The real scheduler against the fake world (no model, no clock, no log), heavy-tailed lengths. Time is that of
`Scheduler.handle` alone, per event; the first fifth of the events does not count.

    python runs/scheduler_cost.py
"""

from __future__ import annotations

import random
import statistics
import time

from offbeat.flow.plan import Plan
from offbeat.flow.scheduler import Scheduler
from offbeat.testing.fake_world import FakeWorld

SHAPES = ((64, 512), (64, 1024), (64, 2048), (64, 4096), (64, 8192), (64, 16384), (1, 384), (8, 4096), (256, 4096))
EVENTS = 30_000
GROUP, BOUND = 8, 3


def heavy(rng: random.Random) -> float:
    return min(400.0, 5 * rng.paretovariate(1.1))


def cost(lanes: int, outstanding: int, schedule: str, seed: int = 0) -> tuple[float, float, float]:
    """Mean, median and 99th percentile of a decision in microseconds."""
    batch = outstanding // (BOUND + 1)
    plan = Plan(
        group_size=GROUP,
        batch_size=batch,
        outstanding_limit=outstanding,
        bound=BOUND,
        live_versions=BOUND + 1,
        iterations=10_000,
        schedule=schedule,
        lanes=lanes,
        lease_seconds=1e6,
        stall_seconds=1e6,
    )
    slots = max(1, outstanding // lanes)
    world = FakeWorld(seed, lanes, slots, length=heavy, learn=10.0)
    scheduler = Scheduler(plan)
    taken = []
    for _ in range(EVENTS):
        event = world.next_event()
        began = time.perf_counter_ns()
        commands = scheduler.handle(event, world.now)
        taken.append((time.perf_counter_ns() - began) / 1000)
        for command in commands:
            world.perform(command)
    counted = sorted(taken[EVENTS // 5 :])
    return statistics.fmean(counted), statistics.median(counted), counted[int(0.99 * len(counted))]


def main() -> None:
    print("schedule        lanes  outstanding  mean us  median us  p99 us")
    for schedule in ("multi-version", "in-flight"):
        for lanes, outstanding in SHAPES:
            mean, middle, high = cost(lanes, outstanding, schedule)
            print(f"{schedule:14}  {lanes:5}  {outstanding:11}  {mean:7.1f}  {middle:9.1f}  {high:6.1f}", flush=True)


if __name__ == "__main__":
    main()
