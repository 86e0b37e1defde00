"""The market against slow, formula-shaped oracles that know nothing of arrays."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import SettingsError
from offbeat.market.clocks import Clock, Periodic, Poisson
from offbeat.market.demand import Ces, Homogeneous, Hotelling, Linear, Logit
from offbeat.market.industry import Industry, calvano
from offbeat.market.market import Market
from offbeat.market.quotes import Latency
from offbeat.market.shocks import Step, Wander

BOX = (1.0, 2.5)


def clocks(firms: int) -> st.SearchStrategy[Clock]:
    rate = st.sampled_from([0.5, 1.0, 2.0, 4.0])
    period = st.builds(Periodic, st.sampled_from([0.25, 0.5, 1.0, 0.3]), st.sampled_from([0.0, 0.25, 0.1]))
    return st.one_of(
        st.lists(rate, min_size=firms, max_size=firms).map(lambda rates: Clock.poisson(*rates)),
        st.lists(st.one_of(period, st.builds(Poisson, rate)), min_size=firms, max_size=firms).map(
            lambda ticks: Clock.each(*ticks)
        ),
        rate.map(lambda r: Clock.alternating(firms, r)),
        rate.map(Clock.common),
        rate.map(Clock.common_poisson),
    )


class Watched:
    """A market with random play, and all that an outsider saw of it: posts[market][firm] = [(time, price)]."""

    def __init__(self, market: Market, steps: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.market, self.decisions, self.posted = market, [market.reset()], []
        self.posts = [[[(-math.inf, market.prices[i, m])] for i in range(market.firms)] for m in range(market.markets)]
        for _ in range(steps):
            last = self.decisions[-1]
            prices = rng.uniform(*market.box, len(last))
            self.posted.append(prices)
            for m, i, t, p in zip(last.market, last.firm, last.now, prices, strict=True):
                self.posts[m][i].append((float(t), float(p)))
            self.decisions.append(market.step(prices))

    def in_force(self, m: int, i: int, t: float) -> tuple[float, float]:
        """(price, time posted) in force at t, right-continuous."""
        posts = self.posts[m][i]
        time, price = posts[bisect_right([s for s, _ in posts], t) - 1]
        return price, max(time, 0.0)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), firms=st.integers(2, 3), seed=st.integers(0, 10_000))
def test_a_firm_sees_exactly_what_latency_allows_and_never_the_future(data, firms: int, seed: int) -> None:
    clock = data.draw(clocks(firms))
    lag = data.draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.7]), min_size=firms**2, max_size=firms**2))
    lags = np.array(lag).reshape(firms, firms)
    market = Market(calvano(firms), 3, clock, latency=Latency(lags), box=BOX, seed=seed)
    watched = Watched(market, 40, seed)
    for decision in watched.decisions:
        for row, (m, i, now) in enumerate(zip(decision.market, decision.firm, decision.now, strict=True)):
            # Prices posted at this very instant come later in the list of posts: look just before it.
            for column in range(firms):
                j = (i + column) % firms
                until = now - lags[i, j] + 1e-9 if column and lags[i, j] > 0 else np.nextafter(now, -1) if now else -1.0
                price, posted = watched.in_force(m, j, until)
                assert decision.seen[row, column] == price
                assert decision.age[row, column] == pytest.approx(now - posted, abs=1e-9)
                assert posted <= now


@settings(max_examples=40, deadline=None)
@given(data=st.data(), firms=st.integers(2, 3), seed=st.integers(0, 10_000), rho=st.sampled_from([0.0, 0.05, 1.0]))
def test_profit_is_the_discounted_integral_of_the_flow(data, firms: int, seed: int, rho: float) -> None:
    industry = calvano(firms)
    market = Market(industry, 2, data.draw(clocks(firms)), rho=rho, box=BOX, seed=seed)
    watched = Watched(market, 30, seed)
    last: dict[tuple[int, int], float] = {}
    for decision in watched.decisions:
        for row, (m, i, now) in enumerate(zip(decision.market, decision.firm, decision.now, strict=True)):
            since = last.get((m, i), 0.0)
            cuts = sorted({since, now, *(t for posts in watched.posts[m] for t, _ in posts if since < t < now)})
            total = 0.0
            for a, b in pairwise(cuts):
                prices = np.array([watched.in_force(m, j, a)[0] for j in range(firms)])
                flow = industry.flow(prices[:, None])[i, 0]
                worth = b - a if rho == 0 else (math.exp(-rho * (a - since)) - math.exp(-rho * (b - since))) / rho
                total += flow * worth
            assert decision.profit[row] == pytest.approx(total, abs=1e-9)
            assert decision.elapsed[row] == pytest.approx(now - since, abs=1e-9)
            assert decision.first[row] == ((m, i) not in last)
            last[m, i] = float(now)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), rate=st.floats(0.5, 20.0))
def test_splitting_an_interval_changes_no_integral(seed: int, rate: float) -> None:
    """Shocks of size 0 cut every interval anywhere; profit, prices and times stay."""
    plain = Watched(Market(calvano(), 4, Clock.poisson(1, 2), rho=0.3, box=BOX, seed=seed), 30, seed)
    cut = Watched(
        Market(calvano(), 4, Clock.poisson(1, 2), rho=0.3, box=BOX, seed=seed, shocks=Wander(rate, 0.0)), 30, seed
    )
    for one, other in zip(plain.decisions, cut.decisions, strict=True):
        assert np.array_equal(one.now, other.now)
        assert np.allclose(one.profit, other.profit, rtol=0, atol=1e-12)
    assert np.allclose(plain.market.earned, cut.market.earned, atol=1e-11)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), firms=st.integers(2, 4), rate=st.sampled_from([0.1, 0.5, 1.0, 3.0]))
def test_common_clock_without_latency_is_the_repeated_game_bit_for_bit(seed: int, firms: int, rate: float) -> None:
    industry, rho = calvano(firms), 0.05
    market = Market(industry, 3, Clock.common(rate), rho=rho, box=BOX, seed=seed)
    rng = np.random.default_rng(seed)
    decision = market.reset()
    state = market.prices.copy()
    period = 1.0 / np.float64(rate)
    weight = np.expm1(-rho * period) * (-1.0 / rho)
    for k in range(30):
        for i in range(firms):  # everyone sees last period's actions
            rows = decision.firm == i
            assert np.array_equal(decision.market[rows], np.arange(3))
            assert np.array_equal(decision.seen[rows], np.roll(state, -i, axis=0).T)
        action = rng.uniform(*BOX, (firms, 3))
        decision = market.step(action[decision.firm, decision.market])
        stage = industry.flow(action)
        assert np.array_equal(decision.profit.reshape(firms, 3), stage * weight)
        assert np.array_equal(decision.now, np.full(3 * firms, (k + 1) * period))
        state = action


def test_no_time_passes_before_the_first_decision_of_the_repeated_game() -> None:
    decision = Market(calvano(), 2, Clock.common(1.0), seed=0).reset()
    assert not decision.now.any()
    assert not decision.profit.any()
    assert decision.first.all()


def kolmogorov(values: np.ndarray, distribution) -> float:
    """sqrt(N) times the largest distance between the empirical and the true distribution; above 1.63 with p = .01."""
    ordered = np.sort(values)
    there = distribution(ordered)
    n = len(values)
    gap = max(np.abs(there - np.arange(1, n + 1) / n).max(), np.abs(there - np.arange(n) / n).max())
    return float(gap * math.sqrt(n))


def test_poisson_clocks_keep_their_law() -> None:
    rates, lag = np.array([0.5, 2.0]), 0.7
    market = Market(calvano(), 500, Clock.poisson(*rates), latency=Latency(lag), seed=11)
    decision = market.reset()
    waits, firms, ages = [], [], []
    for _ in range(60):
        before = decision.now
        decision = market.step(np.full(500, 1.5))
        waits.append(decision.now - before)
        firms.append(decision.firm)
    for _ in range(40):  # ages, thinned so that they hardly depend on one another, long after the start
        for _ in range(10):
            decision = market.step(np.full(500, 1.5))
        rows = decision.firm == 0
        ages.append(decision.age[rows, 1])
    wait, firm, age = np.concatenate(waits), np.concatenate(firms), np.concatenate(ages)
    assert kolmogorov(wait, lambda t: 1 - np.exp(-2.5 * t)) < 1.63
    assert firm.mean() == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / len(firm)))
    assert kolmogorov(age, lambda t: np.where(t < lag, 0.0, 1 - np.exp(-2.0 * (t - lag)))) < 1.63


@pytest.mark.parametrize("law", ["uniform", "exponential"])
def test_random_latency_never_forgets_what_was_seen(law) -> None:
    market = Market(calvano(), 200, Clock.poisson(1, 1), latency=Latency(2.0, law), seed=3)
    watched = Watched(market, 300, 3)
    newest = np.zeros((2, 200))
    ages = []
    for decision in watched.decisions:
        posted = decision.now - decision.age[:, 1]
        assert (posted >= newest[decision.firm, decision.market] - 1e-9).all()
        newest[decision.firm, decision.market] = posted
        ages.append(decision.age[:, 1])
        for row in range(0, 200, 67):
            m, j = decision.market[row], 1 - decision.firm[row]
            assert decision.seen[row, 1] == watched.in_force(m, j, posted[row] + 1e-9)[0]
    assert 1.0 < np.mean(ages[100:]) < 3.0


def test_latency_of_many_events_grows_the_memory_it_needs() -> None:
    watched = Watched(Market(calvano(), 2, Clock.poisson(5, 5), latency=Latency(20.0), seed=1), 900, 1)
    decision = watched.decisions[-1]
    for row, (m, i, now) in enumerate(zip(decision.market, decision.firm, decision.now, strict=True)):
        assert now > 20
        assert decision.seen[row, 1] == watched.in_force(m, 1 - i, now - 20.0)[0]


@settings(max_examples=20, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_restart_begins_some_markets_anew_and_leaves_the_others_where_they_are(data, seed: int) -> None:
    clock = data.draw(clocks(2))
    latency = Latency(data.draw(st.sampled_from([0.0, 1.0])))
    market = Market(calvano(), 6, clock, latency=latency, box=BOX, seed=seed)
    before = Watched(market, 10, seed).decisions[-1]
    kept = before.now.copy()
    earned = market.earned.copy()
    where = np.array([True, False, True, False, False, True])
    after = market.restart(where)
    for m in range(6):
        old, new = before.market == m, after.market == m
        if where[m]:
            assert after.first[new].all()
            assert (after.now[new] == after.elapsed[new]).all()
        else:
            for name in ("firm", "now", "seen", "age", "elapsed", "profit", "first"):
                assert np.array_equal(getattr(before, name)[old], getattr(after, name)[new]), name
            assert np.array_equal(market.earned[:, m], earned[:, m])
    assert np.array_equal(before.now, kept)
    following = market.step(np.full(len(after), 1.5))
    assert (following.elapsed >= 0).all()
    assert (following.age >= 0).all()


def test_alternating_firms_take_turns_and_meeting_clocks_act_together() -> None:
    market = Market(calvano(3), 2, Clock.alternating(3, 1.0), seed=0)
    decision = market.reset()
    for k in range(12):
        assert (decision.firm == k % 3).all()
        assert decision.now == pytest.approx(k / 3)
        decision = market.step(np.full(2, 1.5))
    market = Market(calvano(), 1, Clock.each(Periodic(0.1), Periodic(0.3)), seed=0)
    decision = market.reset()
    together = []
    for _ in range(60):
        together.append(len(decision))
        decision = market.step(np.full(len(decision), 1.5))
    assert together == [2, 1, 1] * 20


def test_one_seed_one_course() -> None:
    def final(seed: int) -> np.ndarray:
        market = Market(calvano(), 5, Clock.poisson(1, 3), latency=Latency(1.0, "exponential"), seed=seed)
        return Watched(market, 50, 0).decisions[-1].seen

    assert np.array_equal(final(4), final(4))
    assert not np.array_equal(final(4), final(5))


def test_the_course_of_the_clocks_does_not_depend_on_prices() -> None:
    def times(seed: int) -> np.ndarray:
        return Watched(Market(calvano(), 5, Clock.poisson(1, 3), seed=9), 50, seed).decisions[-1].now

    assert np.array_equal(times(0), times(1))


def test_a_step_in_demand_lasts_as_long_as_it_says() -> None:
    industry = calvano()
    market = Market(industry, 1, Clock.common(1.0), rho=0.0, shocks=Step(2.5, 0.5, 1.25), initial=np.array([1.5, 1.5]))
    decision = market.reset()
    profits = []
    for _ in range(6):
        decision = market.step(np.full(2, 1.5))
        profits.append(decision.profit[0])
    rest, high = (industry.flow(np.full((2, 1), 1.5), level)[0, 0] for level in (0.0, 0.5))
    assert profits == pytest.approx([rest, rest, 0.5 * rest + 0.5 * high, 0.75 * high + 0.25 * rest, rest, rest])


def test_each_market_has_its_own_rate_and_latency() -> None:
    rates, lags = np.array([0.5, 5.0]), np.zeros((2, 2, 2))
    lags[:, :, 1] = 2.0
    market = Market(calvano(), 2, Clock.poisson(rates, rates), latency=Latency(lags), seed=2)
    decision = Watched(market, 400, 0).decisions[-1]
    assert decision.now[0] > 5 * decision.now[1]
    assert decision.age[1, 1] > 2.0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Market(calvano(), 0, Clock.common()), "markets: 0"),
        (lambda: Market(calvano(), 1, Clock.poisson(1.0, -1.0)), "rate: -1.0"),
        (lambda: Market(calvano(), 1, Clock.poisson(1.0)), "clock: 1 clocks for 2 firms"),
        (lambda: Market(calvano(), 1, Clock.common(), latency=Latency(-1.0)), "latency"),
        (lambda: Market(calvano(), 1, Clock.common(), rho=-0.1), "rho"),
        (lambda: Market(calvano(), 1, Clock.common(), box=(2.0, 1.0)), "box"),
        (lambda: Market(Industry(Logit(), (1.0, 3.0)), 1, Clock.common(), box=BOX), "cost: 3.0"),
        (lambda: Market(Industry(Logit(), (1.0,)), 1, Clock.common()), "cost: 1 costs"),
        (lambda: Market(calvano(), 1, Clock.common(), initial=np.array([1.0, 9.0])), "initial"),
        (lambda: Market(calvano(), 3, Clock.poisson(1.0, np.ones(2))), "rate"),
        (lambda: Market(Industry(Ces(), (1.0, 1.0)), 1, Clock.common(), box=(0.0, 2.0)), "box"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", [np.nan, 0.9, 2.6, np.inf])
def test_a_price_outside_the_box_changes_nothing(wrong: float) -> None:
    market = Market(calvano(), 4, Clock.poisson(1, 1), box=BOX, seed=0)
    decision = market.reset()
    before = market.prices.copy()
    prices = np.full(len(decision), 1.5)
    prices[2] = wrong
    with pytest.raises(SettingsError, match="box"):
        market.step(prices)
    with pytest.raises(SettingsError, match="rows"):
        market.step(prices[:-1])
    assert np.array_equal(before, market.prices)


@pytest.mark.parametrize("demand", [Logit(), Linear(), Hotelling(), Ces((1.0, 1.0)), Homogeneous(2.0)])
def test_demand_falls_in_own_price_and_rises_in_a_rivals(demand) -> None:
    rng = np.random.default_rng(0)
    low = rng.uniform(0.6, 1.5, (2, 500))
    dearer = low.copy()
    dearer[0] += rng.uniform(0, 0.5, 500)
    before, after = demand.quantities(low), demand.quantities(dearer)
    assert (after[0] <= before[0] + 1e-12).all()
    assert (after[1] >= before[1] - 1e-12).all()
    assert (before >= 0).all()
    assert (demand.quantities(low, 0.1).sum(axis=0) >= before.sum(axis=0) - 1e-12).all()
