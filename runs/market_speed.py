"""The lockstep market against one event queue per market: agent events a second on one core, side by side,
by the clock on the wall (for a quiet machine) and by processor time (for a shared one).

    python runs/market_speed.py [--repeats 5]

Both play Calvano's duopoly with Poisson clocks, latency 1 and prices drawn beforehand. The queue is what a careful
person would write for one market: a heap of ticks, a list of past prices, exact integrals.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import time
from statistics import median

from offbeat.market.bench import measure
from offbeat.market.clocks import Clock
from offbeat.market.quotes import Latency
from offbeat.market.scenario import Scenario

RATE, LATENCY, RHO = 1.0, 1.0, 0.05129329438755058


def flow(prices: list[float]) -> list[float]:
    """Profit flows of Calvano's logit."""
    odds = [math.exp((2.0 - price) / 0.25) for price in prices]
    total = 1.0 + sum(odds)
    return [(price - 1.0) * odd / total for price, odd in zip(prices, odds, strict=True)]


def queue_events_per_second(events: int, seed: int) -> tuple[float, float]:
    """One market, event by event: by the clock on the wall, and of processor time."""
    rng = random.Random(seed)
    posted = [rng.uniform(1.0, 2.5) for _ in range(1024)]
    prices, past = [1.5, 1.5], [[(-math.inf, 1.5)], [(-math.inf, 1.5)]]
    ticks = [(rng.expovariate(RATE), firm) for firm in range(2)]
    heapq.heapify(ticks)
    owed, worth, now, flows = [0.0, 0.0], [1.0, 1.0], 0.0, flow(prices)
    paid = seen = 0.0
    started, worked = time.perf_counter(), time.process_time()
    for k in range(events):
        at, firm = heapq.heappop(ticks)
        decay = math.exp(-RHO * (at - now))
        for i in range(2):
            owed[i] += worth[i] * flows[i] * (1.0 - decay) / RHO
            worth[i] *= decay
        now = at
        rival = past[1 - firm]
        while len(rival) > 1 and rival[1][0] <= now - LATENCY:
            rival.pop(0)
        seen += rival[0][1]
        paid += owed[firm]
        owed[firm], worth[firm] = 0.0, 1.0
        prices[firm] = posted[k % 1024]
        past[firm].append((now, prices[firm]))
        flows = flow(prices)
        heapq.heappush(ticks, (now + rng.expovariate(RATE), firm))
    return events / (time.perf_counter() - started), events / (time.process_time() - worked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    scenario = Scenario(clock=Clock.poisson(RATE, RATE), latency=Latency(LATENCY), rho=RHO)
    found: list[tuple[float, ...]] = []
    for repeat in range(repeats):
        queue, queue_worked = queue_events_per_second(200_000, repeat)
        lockstep = measure(scenario, 4096, 4_000_000, 1, lambda words: None)
        wall, worked = lockstep.agent_events_per_second, lockstep.agent_events_per_cpu_second
        found.append((wall, worked, wall / queue, worked / queue_worked))
        print(
            f"repeat {repeat + 1}: queue {queue / 1e6:.3f}, lockstep {wall / 1e6:.2f} million events a second;"
            f" of processor time {queue_worked / 1e6:.3f} and {worked / 1e6:.2f}",
            flush=True,
        )
    wall, worked, ratio, ratio_worked = (median(column) for column in zip(*found, strict=True))
    print(
        f"median: {wall / 1e6:.2f} million agent events a second, {ratio:.0f} times a queue;"
        f" of processor time {worked / 1e6:.2f}, {ratio_worked:.0f} times"
    )


if __name__ == "__main__":
    main()
