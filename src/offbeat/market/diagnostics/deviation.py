"""Forced deviation: cut one firm's price once and watch whether rivals punish, come back, and make the cut not worth
it.

Each market is played twice under one seed, with and without the cut: differences are the cut's doing and nothing
else's. *A verdict of collusion needs all three: profits above the Nash level, a punishment, and no gain from
deviating* (Calvano et al., AER 110(10) 2020, section IV). The policies must not learn or explore meanwhile. It knows
no learner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from offbeat.errors import SettingsError
from offbeat.market.clocks import Index
from offbeat.market.course import Course, play
from offbeat.market.demand import Array
from offbeat.market.equilibrium import Benchmark
from offbeat.market.estimate import Estimate, by_unit, estimate
from offbeat.market.gain import profit_gain
from offbeat.market.market import Decision
from offbeat.market.responses import best_response
from offbeat.market.rules import Policy
from offbeat.market.scenario import Scenario

Kind = Literal["best-response", "nash", "lowest"]
SAMPLES = 121
OWN_DECISIONS = 12


@dataclass(frozen=True)
class Deviation:
    """`firm` deviates at its first decision from `at` on and for `decisions` decisions in a row: to its static best
    response to the prices it sees, to its Nash price, or to the lowest price allowed. Rivals are watched for `watched`
    units of time."""

    firm: int = 0
    at: float = 50.0
    decisions: int = 1
    kind: Kind = "best-response"
    watched: float = 30.0


@dataclass(frozen=True)
class Response:
    """What a forced deviation did.

    times (T,) since the deviation; deviator, rivals, deviator_base, rivals_base (T,): mean prices with the cut and
    without it; own_events, rival_events: mean price at the k-th own decision after it (k = 0 is the cut itself, for
    the deviator); depth: fall of rivals' mean price at the time at which it is deepest, against the same time without
    the cut; recovery: share of the fall from the base to the lowest point that is made up at the end; half_life: time
    from the lowest point until half is made up; net_gain: discounted profit of the deviator with the cut less without,
    from the cut on; unprofitable: share of units where it lost. Where rivals' mean price does not fall by `MARGIN`,
    recovery and half-life are None.
    """

    deviation: Deviation
    times: Array
    deviator: Array
    rivals: Array
    deviator_base: Array
    rivals_base: Array
    own_events: Array
    rival_events: Array
    depth: Estimate
    recovery: float | None
    half_life: float | None
    net_gain: Estimate
    unprofitable: float
    gain: Estimate


MARGIN = 1e-6


def force(
    scenario: Scenario,
    benchmark: Benchmark,
    policies: Sequence[Policy],
    deviation: Deviation,
    markets: int,
    seed: int,
    initial: Array | None = None,
    units: Index | None = None,
) -> Response:
    """Play `markets` pairs of markets from `initial` prices (the cartel's where None) and compare.

    `units` (M,): which independent training a market's policies come from; intervals are over units, over markets where
    None. Raises SettingsError for a deviation that cannot be.
    """
    check(deviation, scenario.industry.firms)
    forced = _Forced(scenario, benchmark, deviation, markets)
    horizon = deviation.at + deviation.watched + 12.0 * scenario.clock.longest_wait
    initial = np.clip(benchmark.cartel.prices, *scenario.box) if initial is None else initial
    cut = play(scenario.open(markets, seed, initial=initial), policies, horizon, forced)
    base = play(scenario.open(markets, seed, initial=initial), policies, horizon)
    began = np.where(np.isnan(forced.began), deviation.at, forced.began)  # a deviator that never acted changed nothing
    return _compare(scenario, benchmark, deviation, cut, base, began, units)


def check(deviation: Deviation, firms: int) -> None:
    """Raise SettingsError for a deviation that cannot be among so many firms."""
    if not 0 <= deviation.firm < firms:
        raise SettingsError(f"deviation: there is no firm {deviation.firm} among {firms}, counted from 0")
    if firms < 2:
        raise SettingsError("deviation: a single firm has no rival that could answer; give a second one")
    if deviation.decisions < 1 or not (np.isfinite(deviation.at) and deviation.at >= 0 and deviation.watched > 0):
        raise SettingsError("deviation: needs at least 1 decision, a start of 0 or later and a time to watch above 0")


class _Forced:
    """An override that cuts the deviator's price and remembers when, by market."""

    def __init__(self, scenario: Scenario, benchmark: Benchmark, deviation: Deviation, markets: int) -> None:
        self._scenario, self._deviation = scenario, deviation
        self._nash = float(np.clip(benchmark.nash.prices[deviation.firm], *scenario.box))
        self._left = np.full(markets, deviation.decisions)
        self.began = np.full(markets, np.nan)

    def __call__(self, decision: Decision, asked: Array) -> Array:
        deviation = self._deviation
        rows = np.flatnonzero(
            (decision.firm == deviation.firm) & (decision.now >= deviation.at) & (self._left[decision.market] > 0)
        )
        if not len(rows):
            return asked
        which = decision.market[rows]
        self.began[which] = np.where(np.isnan(self.began[which]), decision.now[rows], self.began[which])
        self._left[which] -= 1
        prices = asked.copy()
        if deviation.kind == "nash":
            prices[rows] = self._nash
        elif deviation.kind == "lowest":
            prices[rows] = self._scenario.box[0]
        else:
            seen = np.roll(decision.seen[rows].T, deviation.firm, axis=0)
            prices[rows] = best_response(self._scenario.industry, deviation.firm, seen, self._scenario.box)
        return prices


def _compare(
    scenario: Scenario,
    benchmark: Benchmark,
    deviation: Deviation,
    cut: Course,
    base: Course,
    began: Array,
    units: Index | None,
) -> Response:
    firm, others = deviation.firm, [i for i in range(scenario.industry.firms) if i != deviation.firm]
    times = np.linspace(0.0, deviation.watched, SAMPLES)
    instants = began + times[:, None]
    with_cut, without = cut.at(instants), base.at(instants)
    rivals, rivals_base = with_cut[:, others].mean(axis=1), without[:, others].mean(axis=1)
    end = began + deviation.watched
    gained = cut.value(scenario.rho, began, end)[firm] - base.value(scenario.rho, began, end)[firm]
    gained = by_unit(gained, units)
    recovery, half_life = _recovery(times, rivals.mean(axis=1), rivals_base.mean(axis=1))
    before = base.mean_profit(0.5 * deviation.at, deviation.at + deviation.watched)
    return Response(
        deviation=deviation,
        times=times,
        deviator=with_cut[:, firm].mean(axis=1),
        rivals=rivals.mean(axis=1),
        deviator_base=without[:, firm].mean(axis=1),
        rivals_base=rivals_base.mean(axis=1),
        own_events=_by_decision(cut, [firm], began, include=True),
        rival_events=_by_decision(cut, others, began, include=False),
        depth=estimate(_deepest(by_unit(rivals_base - rivals, units))),
        recovery=recovery,
        half_life=half_life,
        net_gain=estimate(gained),
        unprofitable=float((gained < 0).mean()),
        gain=estimate(by_unit(profit_gain(benchmark, before), units)),
    )


def _deepest(fallen: Array) -> Array:
    """Fall (T, M) of each market at the time at which the other half of the markets fell most on average: (M,).

    Choosing the time on one half and reading it on the other keeps the largest of many noisy means from passing for a
    punishment.
    """
    deepest = np.empty(fallen.shape[1])
    for half in (0, 1):
        chosen = fallen[:, half::2].mean(axis=1).argmax() if fallen.shape[1] > 1 else fallen[:, 0].argmax()
        deepest[1 - half :: 2] = fallen[chosen, 1 - half :: 2]
    return deepest


def _recovery(times: Array, path: Array, base: Array) -> tuple[float | None, float | None]:
    """(share of the fall made up at the end, time from the lowest point to half of it) of a mean path against its
    base.
    """
    fallen = base - path
    lowest = int(fallen.argmax())
    depth = float(fallen[lowest])
    if depth <= MARGIN:
        return None, None
    after = np.flatnonzero(fallen[lowest:] <= 0.5 * depth)
    return float((depth - fallen[-1]) / depth), float(times[lowest + after[0]] - times[lowest]) if len(after) else None


def _by_decision(course: Course, firms: list[int], began: Array, include: bool) -> Array:
    """Mean price (K,) that `firms` posted at their k-th decision after the deviation (from it on, if `include`)."""
    total, number = np.zeros(OWN_DECISIONS), np.zeros(OWN_DECISIONS)
    count = np.zeros((course.prices.shape[1], course.prices.shape[2]), dtype=int)
    for decision, prices in zip(course.decisions, course.posted, strict=True):
        start = began[decision.market]
        rows = np.flatnonzero(
            np.isin(decision.firm, firms) & ((decision.now >= start) if include else (decision.now > start))
        )
        nth = count[decision.firm[rows], decision.market[rows]]
        kept = nth < OWN_DECISIONS
        np.add.at(total, nth[kept], prices[rows][kept])
        np.add.at(number, nth[kept], 1)
        count[decision.firm[rows], decision.market[rows]] += 1
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


Word = Literal["competitive", "supra-competitive", "collusion", "inconclusive"]
ABOVE, FALL = 0.05, 0.01
"""The lines: a profit gain that counts as above Nash; a fall, in cartel less Nash price, that counts as punishment."""


@dataclass(frozen=True)
class Verdict:
    """`word`; `reasons`: one line for each test, with its interval."""

    word: Word
    reasons: tuple[str, ...]


def judge(response: Response, scale: float) -> Verdict:
    """The word that the tests support; `scale` is cartel less Nash price, in which the depth is told.

    inconclusive: the profit gain's interval is on both sides of the line, or there is none (a single unit).
    competitive: it is below. collusion: it is above, rivals punish and deviating loses, each with its whole interval;
    else supra-competitive.
    """
    gain, depth, net = response.gain, response.depth, response.net_gain
    above, below = gain.low > ABOVE, gain.high <= ABOVE
    punished, deterred = depth.low > FALL * scale, net.high < 0
    where = "above" if above else "not above" if below else "not clearly on one side of"
    reasons = (
        f"profit gain {gain}: {where} the Nash level",
        f"rivals' fall after a deviation {depth}: {'a punishment' if punished else 'no punishment shown'}",
        f"net gain of deviating {net}: {'deviating does not pay' if deterred else 'deviating is not shown to lose'}",
    )
    if not above:
        return Verdict("competitive" if below else "inconclusive", reasons)
    return Verdict("collusion" if punished and deterred else "supra-competitive", reasons)
