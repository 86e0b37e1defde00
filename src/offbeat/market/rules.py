"""Fixed pricing rules: baselines, opponents and controls. A policy maps a decision to prices, one a row.

Nash, cartel, midpoint and random react to nothing; tit-for-tat, myopic best response and the one-memory grim trigger
react to what they see. The trigger is the positive control of every collusion test, Nash and random the negative ones.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from offbeat.errors import SettingsError
from offbeat.eventtime.streams import stream_seed
from offbeat.market.demand import Array
from offbeat.market.equilibrium import Benchmark
from offbeat.market.market import Decision
from offbeat.market.responses import best_response

Policy = Callable[[Decision], Array]
"""Decision -> prices (rows,), inside the market's box."""
Box = tuple[float, float]


class Fixed:
    """Each firm always asks its own price of `prices` (n,)."""

    def __init__(self, prices: Array, box: Box) -> None:
        self.prices = np.clip(np.asarray(prices, dtype=np.float64), *box)

    def __call__(self, decision: Decision) -> Array:
        return self.prices[decision.firm]


class Random:
    """Uniform in the box, independent of everything."""

    def __init__(self, box: Box, seed: int = 0) -> None:
        self._box, self._rng = box, np.random.default_rng(stream_seed(seed, "rule", "random"))

    def __call__(self, decision: Decision) -> Array:
        return self._rng.uniform(*self._box, len(decision))


class TitForTat:
    """Ask the cartel price first, then what the cheapest rival was last seen asking, but no less than the Nash
    price.
    """

    def __init__(self, benchmark: Benchmark, box: Box) -> None:
        self._cartel, self._nash = (np.clip(end.prices, *box) for end in (benchmark.cartel, benchmark.nash))

    def __call__(self, decision: Decision) -> Array:
        own, rivals = self._cartel[decision.firm], decision.seen[:, 1:]
        matched = rivals.min(axis=1, initial=np.inf)
        replied = np.clip(matched, self._nash[decision.firm], np.maximum(own, self._nash[decision.firm]))
        return np.where(decision.first, own, replied)


class GrimTrigger:
    """Ask the cartel price as long as nobody, itself included, was seen below it by more than `tolerance`; else the
    Nash price.

    Its only memory is the prices it sees: once its own is the Nash price it stays there.
    """

    def __init__(self, benchmark: Benchmark, box: Box, tolerance: float = 1e-9) -> None:
        self._cartel, self._nash = (np.clip(end.prices, *box) for end in (benchmark.cartel, benchmark.nash))
        self._tolerance = tolerance

    def __call__(self, decision: Decision) -> Array:
        firms = len(self._cartel)
        whose = (decision.firm[:, None] + np.arange(firms)) % firms
        kept = (decision.seen >= self._cartel[whose] - self._tolerance).all(axis=1)
        return np.where(kept | decision.first, self._cartel[decision.firm], self._nash[decision.firm])


class MyopicBestResponse:
    """The static best response to the prices last seen."""

    def __init__(self, benchmark: Benchmark, box: Box) -> None:
        self._industry, self._box = benchmark.industry, box

    def __call__(self, decision: Decision) -> Array:
        answer = np.empty(len(decision))
        firms = self._industry.firms
        for firm in range(firms):
            rows = decision.firm == firm
            if rows.any():
                prices = np.roll(decision.seen[rows].T, firm, axis=0)  # column k is firm (firm + k) mod n
                answer[rows] = best_response(self._industry, firm, prices, self._box)
        return answer


RULES: dict[str, Callable[[Benchmark, Box, int], Policy]] = {
    "nash": lambda benchmark, box, seed: Fixed(benchmark.nash.prices, box),
    "cartel": lambda benchmark, box, seed: Fixed(benchmark.cartel.prices, box),
    "midpoint": lambda benchmark, box, seed: Fixed(np.full(benchmark.industry.firms, sum(box) / 2), box),
    "random": lambda benchmark, box, seed: Random(box, seed),
    "tit-for-tat": lambda benchmark, box, seed: TitForTat(benchmark, box),
    "grim-trigger": lambda benchmark, box, seed: GrimTrigger(benchmark, box),
    "myopic": lambda benchmark, box, seed: MyopicBestResponse(benchmark, box),
}


def rule(name: str, benchmark: Benchmark, box: Box, seed: int = 0) -> Policy:
    """The rule called `name`. Raises SettingsError where there is none."""
    if name not in RULES:
        raise SettingsError(f"rule: no rule {name!r}; there are {', '.join(RULES)}")
    return RULES[name](benchmark, box, seed)
