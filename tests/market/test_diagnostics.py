"""Every diagnostic on play whose answer is known: a trigger is collusion, a constant price is not, noise is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from offbeat.errors import SettingsError
from offbeat.market.clocks import Clock
from offbeat.market.course import play
from offbeat.market.demand import Homogeneous, Logit
from offbeat.market.diagnostics.demand_shock import shock_demand
from offbeat.market.diagnostics.deviation import Deviation, force, judge
from offbeat.market.diagnostics.divergence import ExclusionRule, largest_flow, tell, value_bound
from offbeat.market.diagnostics.exploitability import AffineSearch, exploitability
from offbeat.market.diagnostics.signalling import signalling
from offbeat.market.equilibrium import solve
from offbeat.market.estimate import by_unit, estimate
from offbeat.market.industry import Industry, calvano
from offbeat.market.quotes import Latency
from offbeat.market.responses import best_response
from offbeat.market.rules import RULES, rule
from offbeat.market.scenario import Scenario
from offbeat.market.shocks import Step

BENCHMARK = solve(calvano())
SCALE = float(BENCHMARK.cartel.prices[0] - BENCHMARK.nash.prices[0])
BOX = (1.0, 2.5)
CLOCKED = Scenario(clock=Clock.common(1.0), horizon=60.0)
POISSON = Scenario(latency=Latency(0.5), horizon=40.0)


def policies(name: str, other: str | None = None) -> list:
    return [rule(name, BENCHMARK, BOX, 1), rule(other or name, BENCHMARK, BOX, 2)]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("grim-trigger", "collusion"),
        ("cartel", "supra-competitive"),
        ("nash", "competitive"),
        ("random", "competitive"),
        ("myopic", "competitive"),
    ],
)
@pytest.mark.parametrize("scenario", [CLOCKED, POISSON], ids=["clocked", "poisson"])
def test_collusion_is_said_only_where_deviation_is_punished_and_does_not_pay(scenario, name: str, word: str) -> None:
    response = force(scenario, BENCHMARK, policies(name), Deviation(at=20.0, watched=25.0), 60, 5)
    verdict = judge(response, SCALE)
    assert verdict.word == word, verdict.reasons
    assert len(verdict.reasons) == 3


def test_a_trigger_notices_the_smallest_undercut_that_takes_the_market() -> None:
    """One good for all: the best deviation is an arbitrarily small cut."""
    benchmark = solve(Industry(Homogeneous(), (0.0, 0.0)))
    scenario = Scenario(benchmark.industry, Clock.common(1.0), box=(0.0, 0.8), horizon=40.0)
    seats = [rule("grim-trigger", benchmark, scenario.box)] * 2
    response = force(scenario, benchmark, seats, Deviation(at=10.0, watched=20.0), 4, 0)
    assert response.depth.mean == pytest.approx(0.5)
    assert judge(response, 0.5).word == "collusion"


def test_one_unit_or_a_gain_on_both_sides_of_the_line_decides_nothing() -> None:
    response = force(CLOCKED, BENCHMARK, policies("grim-trigger"), Deviation(at=20.0, watched=25.0), 1, 5)
    assert judge(response, SCALE).word == "inconclusive"
    wide = replace(response, gain=estimate(np.array([-1.0, 1.0, -0.5, 0.9])))
    assert judge(wide, SCALE).word == "inconclusive"


def test_the_trigger_punishes_for_ever_and_by_how_much_is_known() -> None:
    response = force(CLOCKED, BENCHMARK, policies("grim-trigger"), Deviation(at=20.0, watched=30.0), 3, 5)
    assert response.depth.mean == pytest.approx(SCALE, abs=1e-6)
    assert response.recovery == pytest.approx(0.0, abs=1e-9)
    assert response.half_life is None
    cartel, nash = BENCHMARK.cartel.profits[0], BENCHMARK.nash.profits[0]
    prices = BENCHMARK.cartel.prices[:, None].copy()
    prices[0] = best_response(calvano(), 0, prices, BOX)
    once = calvano().flow(prices)[0, 0] - cartel
    discount = 0.95
    weight = (1 - discount) / -np.log(discount)  # of one period of unit flow
    tail = sum(discount**k for k in range(1, 30))
    assert response.net_gain.mean == pytest.approx(weight * (once + tail * (nash - cartel)), abs=1e-6)
    assert response.own_events[0] == pytest.approx(prices[0, 0], abs=1e-6)
    assert response.rival_events[0] == pytest.approx(BENCHMARK.nash.prices[0])
    assert response.rivals[0] == pytest.approx(BENCHMARK.cartel.prices[0])


def test_tit_for_tat_comes_back_only_with_the_one_it_matches() -> None:
    response = force(CLOCKED, BENCHMARK, policies("tit-for-tat", "cartel"), Deviation(1, at=20.0, watched=20.0), 3, 5)
    assert response.depth.mean > 0.2
    assert response.recovery == pytest.approx(1.0)
    assert response.half_life is not None
    assert response.half_life <= 2


def test_markets_of_one_training_are_one_unit() -> None:
    """Testing each training in more markets narrows no interval: what varies is between trainings."""
    values = np.random.default_rng(0).normal(size=12)
    once, often = estimate(values), estimate(by_unit(np.repeat(values, 9), np.repeat(np.arange(12), 9)))
    assert (often.low, often.high, often.count) == pytest.approx((once.low, once.high, 12))
    units = np.repeat(np.arange(3), 4)
    response = force(POISSON, BENCHMARK, policies("tit-for-tat"), Deviation(at=8.0, watched=8.0), 12, 5, units=units)
    assert response.depth.count == response.net_gain.count == response.gain.count == 3


def test_noise_is_no_punishment() -> None:
    response = force(POISSON, BENCHMARK, policies("cartel", "random"), Deviation(at=20.0, watched=25.0), 200, 5)
    assert response.depth.low < 0.05 * SCALE


def test_prices_leave_with_demand_and_come_back_with_it() -> None:
    shock = Step(10.0, 0.5, 5.0)
    still = shock_demand(CLOCKED, BENCHMARK, policies("cartel"), shock, 20.0, 3, 0)
    assert still.displaced == 0
    assert still.recovery is None
    answer = shock_demand(CLOCKED, BENCHMARK, [_Watchful(), _Watchful()], shock, 20.0, 3, 0)
    assert answer.displaced == pytest.approx(0.3)
    assert answer.recovery == pytest.approx(0.0)  # it never finds back
    assert answer.left.mean == pytest.approx(-0.3)


class _Watchful:
    """Cuts for good once a period's profit is out of the ordinary: the shape of post-shock non-recovery."""

    def __init__(self) -> None:
        self._angry = np.zeros(1, dtype=bool)

    def __call__(self, decision):
        if decision.first.all():
            self._angry = np.zeros(decision.market.max() + 1, dtype=bool)
        high = (decision.profit > 0.34) & ~decision.first
        self._angry[decision.market[high]] = True
        return np.where(self._angry[decision.market], BENCHMARK.cartel.prices[0] - 0.3, BENCHMARK.cartel.prices[0])


def test_signalling_finds_an_answer_and_not_noise() -> None:
    scenario = Scenario(latency=Latency(0.2), horizon=60.0)
    found = signalling(play(scenario.open(60, 3), policies("random", "myopic"), 60.0))
    assert (found.low > found.null_high).all()  # the myopic firm follows what it sees
    assert not found.collapsed
    noise = signalling(play(scenario.open(60, 4), policies("random"), 60.0))
    covered = (noise.low <= noise.null_high) & (noise.high >= noise.null_low)
    assert covered.sum() >= 4
    still = signalling(play(scenario.open(5, 4), policies("nash"), 60.0))
    assert np.isnan(still.slope[-1])
    assert not still.collapsed


def test_a_cartel_is_exploitable_and_nash_is_not() -> None:
    scenario = Scenario(horizon=40.0)
    search = AffineSearch(candidates=200, generations=6, horizon=30.0)
    cartel = exploitability(scenario, policies("cartel"), 0, search, markets=64)
    assert cartel.gained.low > 0.8 * 17 * 0.074 * 0.8  # deviation flow - cartel flow is .0742, discounted over 40 units
    nash = exploitability(scenario, policies("nash"), 0, search, markets=64)
    assert nash.gained.high < 0.02


@pytest.mark.parametrize("box", [(1.0, 2.5), (0.0, 3.0), (1.4, 2.0)])
@pytest.mark.parametrize("industry", [calvano(), calvano(3), Industry(Logit((2.0, 2.5)), (1.0, 1.2))])
def test_no_profit_flow_exceeds_the_bound(industry: Industry, box) -> None:
    rng = np.random.default_rng(0)
    prices = rng.choice([box[0], box[1], np.nan], size=(industry.firms, 20_000))
    prices = np.where(np.isnan(prices), rng.uniform(*box, prices.shape), prices)
    worst = np.abs(industry.flow(prices)).max()
    assert worst <= largest_flow(industry, box)
    assert largest_flow(industry, box) <= 1.02 * worst
    assert value_bound(industry, box, 0.05) == pytest.approx(20 * largest_flow(industry, box))


def test_the_exclusion_rule_is_applied_to_the_trace_alone() -> None:
    rule_ = ExclusionRule(bound=10.0, margin=0.1)
    trace = np.array([[9.0, 10.9, 1.0, 5.0], [9.9, 11.1, np.nan, 5.0], [3.0, 2.0, 1.0, -12.0]])
    assert rule_.diverged(trace).tolist() == [False, True, True, True]
    assert rule_.at(trace).tolist() == [-1, 1, 1, 2]
    told = tell(np.array([0.5, 9.0, 9.0, 0.7]), np.array([False, True, True, False]))
    assert told.diverged == 2
    assert told.kept.mean == pytest.approx(0.6)
    assert told.everyone.mean == pytest.approx(4.8)
    with pytest.raises(SettingsError, match="rho"):
        value_bound(calvano(), BOX, 0.0)


def test_an_interval_covers_the_mean_it_is_about() -> None:
    rng = np.random.default_rng(0)
    covered = [(found := estimate(rng.exponential(1.0, 60))).low <= 1.0 <= found.high for _ in range(150)]
    assert 0.87 <= np.mean(covered) <= 0.99
    assert np.isnan(estimate(np.array([1.0])).low)
    assert estimate(np.array([np.nan, 2.0, 2.0])).count == 2


@pytest.mark.parametrize("name", RULES)
def test_every_rule_plays_inside_any_box(name: str) -> None:
    box = (1.5, 1.8)
    scenario = Scenario(
        Industry(Logit((2.0, 2.0, 2.2)), (1.0, 1.1, 1.0)), Clock.poisson(1, 2, 1), Latency(1.0), box=box
    )
    benchmark = solve(scenario.industry)
    course = play(scenario.open(4, 0), [rule(name, benchmark, box)] * 3, 10.0)
    assert course.prices.min() >= box[0]
    assert course.prices.max() <= box[1]


def test_unknown_rule_is_one_line() -> None:
    with pytest.raises(SettingsError, match="no rule 'grimm'"):
        rule("grimm", BENCHMARK, BOX)
