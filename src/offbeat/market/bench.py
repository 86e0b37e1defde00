"""How many agent events a second the market advances on one core: an agent event is one firm posting one price.

Prices are drawn before the clock starts; what is timed is everything `step` does. It judges nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from offbeat.errors import SettingsError
from offbeat.market.scenario import Scenario

WARM_STEPS = 100
PRICE_SETS = 16


@dataclass(frozen=True)
class Speed:
    """Agent events a second of wall clock: median over repeats, and the slowest and fastest of them.

    `agent_events_per_cpu_second`: the same by processor time; where it is much larger, other work shared the core.
    """

    agent_events_per_second: float
    agent_events_per_cpu_second: float
    slowest: float
    fastest: float
    repeats: int
    agent_events: int


def measure(scenario: Scenario, markets: int, events: int, repeats: int, say: Callable[[str], None]) -> Speed:
    """Advance `markets` markets by at least `events` agent events, `repeats` times."""
    if events < 1 or repeats < 1:
        raise SettingsError(f"events: {events} in {repeats} repeats; both must be at least 1")
    market = scenario.open(markets, seed=0)
    rng = np.random.default_rng(0)
    posted = [rng.uniform(*scenario.box, markets * market.firms) for _ in range(PRICE_SETS)]
    decision = market.reset()
    for k in range(WARM_STEPS):
        decision = market.step(posted[k % PRICE_SETS][: len(decision)])
    speeds, lonely, total = [], [], 0
    for repeat in range(repeats):
        done, k = 0, 0
        started, used = time.perf_counter(), time.process_time()
        while done < events:
            done += len(decision)
            decision = market.step(posted[k % PRICE_SETS][: len(decision)])
            k += 1
        speeds.append(done / (time.perf_counter() - started))
        lonely.append(done / (time.process_time() - used))
        total += done
        say(f"repeat {repeat + 1} of {repeats}: {speeds[-1] / 1e6:.2f} million agent events a second")
    return Speed(median(speeds), median(lonely), min(speeds), max(speeds), repeats, total)
