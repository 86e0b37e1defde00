"""All tests of given policies one after the other: deviation, demand shock, signalling, learnt best responses.

Policies may be rules, the same in every market, or several independent trainings side by side: then `units` says which
market belongs to which training, and *every interval is over trainings, not over markets*. It prints nothing and reads
no files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from offbeat.errors import SettingsError
from offbeat.market.clocks import Index
from offbeat.market.course import play
from offbeat.market.diagnostics.demand_shock import ShockResponse, shock_demand
from offbeat.market.diagnostics.deviation import Deviation, Response, Verdict, check, force, judge
from offbeat.market.diagnostics.exploitability import AffineSearch, BestResponder, exploitability
from offbeat.market.diagnostics.signalling import Signalling, signalling
from offbeat.market.equilibrium import Benchmark
from offbeat.market.estimate import Estimate, estimate
from offbeat.market.gain import NullGains, null_gains
from offbeat.market.rules import Policy, rule
from offbeat.market.scenario import Scenario
from offbeat.market.shocks import Step


@dataclass(frozen=True)
class Entrants:
    """`names` of the firms' policies; `seats` play in len(units) markets; `alone`: for each unit seats that play in
    any number of markets; `units` (M,): which of them market m belongs to."""

    names: Sequence[str]
    seats: Sequence[Policy]
    units: Index
    alone: Sequence[Sequence[Policy]]


@dataclass(frozen=True)
class Exploited:
    """What a learnt best response of `firm` gains, and what the present policy has: discounted, over the episode."""

    firm: int
    gained: Estimate
    present: Estimate


@dataclass(frozen=True)
class Tested:
    """What the tests found."""

    names: Sequence[str]
    response: Response
    answer: ShockResponse
    signals: Signalling
    verdict: Verdict
    nulls: NullGains
    exploited: Sequence[Exploited]


def rules_as_entrants(
    names: Sequence[str], benchmark: Benchmark, box: tuple[float, float], markets: int, seed: int
) -> Entrants:
    """Rules by name, one for all firms or one for each; every market is a unit of its own."""
    firms = benchmark.industry.firms
    if len(names) not in (1, firms):
        raise SettingsError(f"policies: {len(names)} for {firms} firms; give one, or one for each firm")
    every = list(names) * firms if len(names) == 1 else list(names)
    seats = [rule(name, benchmark, box, seed + i) for i, name in enumerate(every)]
    return Entrants(every, seats, np.arange(markets), [seats])


def run_tests(
    scenario: Scenario,
    benchmark: Benchmark,
    entrants: Entrants,
    cut: Deviation,
    shock: Step,
    seed: int,
    say: Callable[[str], None],
    learner: BestResponder | None = None,
) -> Tested:
    """The whole battery. Raises SettingsError before anything is played where the deviation cannot be."""
    check(cut, scenario.industry.firms)
    markets, units = len(entrants.units), entrants.units
    say("forced deviation")
    response = force(scenario, benchmark, entrants.seats, cut, markets, seed, units=units)
    say("demand shock")
    answer = shock_demand(scenario, benchmark, entrants.seats, shock, cut.watched, markets, seed, units=units)
    say("signalling")
    signals = signalling(play(scenario.open(markets, seed), entrants.seats, scenario.horizon), seed, units)
    exploited = []
    for firm in range(scenario.industry.firms):
        say(f"learnt best response of firm {firm}")
        exploited.append(_exploited(scenario, entrants, firm, learner or AffineSearch(), seed))
    word = judge(response, float((benchmark.cartel.prices - benchmark.nash.prices).mean()))
    return Tested(entrants.names, response, answer, signals, word, null_gains(benchmark, scenario.box), exploited)


def _exploited(scenario: Scenario, entrants: Entrants, firm: int, learner: BestResponder, seed: int) -> Exploited:
    found = [exploitability(scenario, seats, firm, learner, seed=seed) for seats in entrants.alone]
    if len(found) == 1:
        return Exploited(firm, found[0].gained, found[0].present)
    gained, present = (np.array([getattr(f, name).mean for f in found]) for name in ("gained", "present"))
    return Exploited(firm, estimate(gained), estimate(present))
