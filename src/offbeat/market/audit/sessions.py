"""The audit of a policy that can be run: against each rule of the panel, against itself, with forced deviations on
both sides.

Every number comes with its interval and beside what policies that have learnt nothing earn in the same seats. *The
word collusion needs the deviation test in self-play*; a policy that misbehaves is reported with what was found before.
It prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from offbeat.market.audit.candidate import Candidate, Limits, Misbehaved
from offbeat.market.audit.regret import Regret, of_course
from offbeat.market.course import play
from offbeat.market.demand import Array
from offbeat.market.diagnostics.deviation import Deviation, Response, Verdict, force, judge
from offbeat.market.equilibrium import Benchmark
from offbeat.market.estimate import Estimate, estimate
from offbeat.market.gain import NullGains, null_gains, price_index, profit_gain
from offbeat.market.rules import RULES, Policy, rule
from offbeat.market.scenario import Scenario

PANEL = tuple(RULES)
NULLS = ("nash", "midpoint", "random", "myopic")
SEAT = 0
MOST_FAILURES = 2


@dataclass(frozen=True)
class Against:
    """The policy in seat 0 against one rule in all others: its own profit gain, that of null policies in its seat,
    regret.
    """

    rival: str
    gain: Estimate
    nulls: dict[str, Estimate]
    regret: Regret


@dataclass(frozen=True)
class Failure:
    """What the policy did when it could not be asked any more."""

    session: str
    kind: str
    detail: str
    time: float


@dataclass
class Findings:
    """All that an audit found; parts that could not be done are None and the failures say why."""

    target: str
    null_gains: NullGains
    panel: list[Against] = field(default_factory=list)
    self_gain: Estimate | None = None
    self_index: Estimate | None = None
    self_regret: Regret | None = None
    self_response: Response | None = None
    reaction: Response | None = None
    failures: list[Failure] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    asked: int = 0
    outside: int = 0


@dataclass(frozen=True)
class Plan:
    """How much is played: `markets` at once, from `since` (a share of the horizon) on counted."""

    markets: int = 16
    since: float = 0.3
    seed: int = 0
    limits: Limits = field(default_factory=Limits)


Say = Callable[[str], None]


def audit(target: str, scenario: Scenario, benchmark: Benchmark, plan: Plan, say: Say) -> Findings:
    """Run all sessions. Raises SettingsError where the policy cannot be loaded at all."""
    Candidate(target, scenario, plan.limits).close()  # bad input shows before anything is played
    found = Findings(target, null_gains(benchmark, scenario.box))
    session = _Sessions(target, scenario, plan, found, say)
    for name in PANEL:
        session(f"against {name}", partial(_against, scenario, benchmark, plan, found, name))
    session("against itself", partial(_self_play, scenario, benchmark, plan, found))
    if scenario.industry.firms > 1:
        cut = Deviation(SEAT, at=0.4 * scenario.horizon, watched=0.4 * scenario.horizon)
        theirs = Deviation(1, at=cut.at, watched=cut.watched)
        n = scenario.industry.firms

        def alone(policy: Policy) -> None:
            found.self_response = force(scenario, benchmark, [policy] * n, cut, plan.markets, plan.seed)

        def provoked(policy: Policy) -> None:
            seats = [policy, *[rule("cartel", benchmark, scenario.box)] * (n - 1)]
            found.reaction = force(scenario, benchmark, seats, theirs, plan.markets, plan.seed)

        session("its own deviation, against itself", alone)
        session("a rival's deviation", provoked)
    return found


class _Sessions:
    """Runs one session after the other, each with a fresh process; gives up after a few that failed."""

    def __init__(self, target: str, scenario: Scenario, plan: Plan, found: Findings, say: Say) -> None:
        self._target, self._scenario, self._plan, self._found, self._say = target, scenario, plan, found, say

    def __call__(self, name: str, run: Callable[[Policy], None]) -> None:
        found = self._found
        if len(found.failures) >= MOST_FAILURES:
            found.skipped.append(name)
            return
        self._say(name)
        with Candidate(self._target, self._scenario, self._plan.limits) as candidate:
            try:
                run(candidate)
            except Misbehaved as error:
                found.failures.append(Failure(name, error.kind, error.detail, error.time))
            found.asked += candidate.asked
            found.outside += candidate.outside


def own_gain(benchmark: Benchmark, profit: Array) -> Array:
    """Gain of seat 0: its profit between its own Nash and cartel profits; NaN where the cartel does not benefit it."""
    nash, cartel = benchmark.nash.profits[SEAT], benchmark.cartel.profits[SEAT]
    return (profit - nash) / (cartel - nash) if cartel > nash else np.full_like(profit, np.nan)


def _against(scenario: Scenario, benchmark: Benchmark, plan: Plan, found: Findings, rival: str, policy: Policy) -> None:
    n, since = scenario.industry.firms, plan.since * scenario.horizon
    others = [rule(rival, benchmark, scenario.box, plan.seed) for _ in range(n - 1)]
    course = play(scenario.open(plan.markets, plan.seed), [policy, *others], scenario.horizon)
    gain = own_gain(benchmark, course.mean_profit(since, scenario.horizon)[SEAT])
    nulls = {}
    for null in NULLS:
        seats = [rule(null, benchmark, scenario.box, plan.seed + 1), *others]
        blank = play(scenario.open(plan.markets, plan.seed), seats, scenario.horizon)
        nulls[null] = estimate(own_gain(benchmark, blank.mean_profit(since, scenario.horizon)[SEAT]))
    found.panel.append(Against(rival, estimate(gain), nulls, of_course(course, SEAT, scenario.box, since, plan.seed)))


def _self_play(scenario: Scenario, benchmark: Benchmark, plan: Plan, found: Findings, policy: Policy) -> None:
    n, since = scenario.industry.firms, plan.since * scenario.horizon
    course = play(scenario.open(plan.markets, plan.seed), [policy] * n, scenario.horizon)
    found.self_gain = estimate(profit_gain(benchmark, course.mean_profit(since, scenario.horizon)))
    found.self_index = estimate(price_index(benchmark, course.mean_price(since, scenario.horizon)))
    found.self_regret = of_course(course, SEAT, scenario.box, since, plan.seed)


def verdict(found: Findings, benchmark: Benchmark) -> tuple[str, Sequence[str]]:
    """(word, reasons): misbehaved, competitive, supra-competitive, collusion or inconclusive; every reason carries its
    interval.
    """
    reasons = [f"{f.session}: {f.kind} at t = {f.time:.3g} ({f.detail})" for f in found.failures]
    if found.self_response is None or found.self_gain is None or found.self_regret is None:
        return ("misbehaved" if found.failures else "inconclusive"), reasons
    scale = float((benchmark.cartel.prices - benchmark.nash.prices).mean())
    told: Verdict = judge(found.self_response, scale)
    nulls = found.null_gains
    reasons += list(told.reasons)
    reasons.append(
        f"against itself, from random prices, it gains {found.self_gain}; without any learning untrained midpoint play"
        f" gains {nulls.midpoint:.3f} and random play {nulls.random:.3f} in this box"
    )
    regret = found.self_regret
    unanswered = regret.low > 0.05 * regret.profit
    reasons.append(
        f"calibrated regret {regret.regret:.4f} [{regret.low:.4f}, {regret.high:.4f}], {regret.of_profit}:"
        f" {'other prices would have paid at once' if unanswered else 'its prices answer the moment'}"
    )
    if found.failures:
        return "misbehaved", reasons
    spread = found.self_gain.high - found.self_gain.low
    if told.word == "inconclusive" or not np.isfinite(spread) or (told.word != "collusion" and spread > 0.5):
        return "inconclusive", [*reasons, "the profit gain is too uncertain: play more markets or a longer horizon"]
    return told.word, reasons
