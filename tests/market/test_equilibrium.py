"""Equilibria against the published table, brute force and their own certificates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import SettingsError
from offbeat.market.certificate import log_lambert
from offbeat.market.demand import Ces, Homogeneous, Hotelling, Linear, Logit
from offbeat.market.equilibrium import solve
from offbeat.market.frontier import critical_discount, longest_latency, reaction_discount
from offbeat.market.gain import firm_gains, null_gains, price_index, profit_gain
from offbeat.market.industry import Industry, calvano

TABLE = {
    2: (1.472927, 1.924981, 0.222927, 0.337490),
    3: (1.370163, 2.000000, 0.120163, 0.250000),
    4: (1.331461, 2.054411, 0.081461, 0.201103),
    5: (1.311521, 2.097231, 0.061521, 0.169446),
    10: (1.277607, 2.233286, 0.027607, 0.098329),
}
"""Calvano's logit with n firms: Nash price, cartel price, Nash profit, cartel profit (R1)."""

industries = st.one_of(
    st.integers(2, 4).flatmap(
        lambda n: st.builds(
            Industry,
            st.builds(Logit, st.tuples(*[st.floats(1.5, 3)] * n), st.floats(0.1, 1.0), st.floats(-1, 1)),
            st.tuples(*[st.floats(0, 1.5)] * n),
        )
    ),
    st.builds(
        Industry,
        st.builds(Ces, st.tuples(*[st.floats(-0.5, 0.5)] * 3), st.floats(1.5, 8), st.just(1.0), st.floats(0.2, 2)),
        st.tuples(*[st.floats(0.5, 1.5)] * 3),
    ),
    st.builds(
        Industry,
        st.builds(Linear, st.tuples(*[st.floats(0.9, 1.1)] * 3), st.floats(0, 0.7)),
        st.tuples(*[st.floats(0, 0.1)] * 3),
    ),
    st.builds(
        Industry,
        st.builds(Hotelling, st.tuples(st.floats(2, 3), st.floats(2, 3)), st.just(1.0)),
        st.tuples(st.floats(0, 0.2), st.floats(0, 0.2)),
    ),
)


@pytest.mark.parametrize("firms", TABLE)
def test_published_table(firms: int) -> None:
    found = solve(calvano(firms))
    values = found.nash.prices[0], found.cartel.prices[0], found.nash.profits[0], found.cartel.profits[0]
    assert values == pytest.approx(TABLE[firms], abs=1e-6)
    assert found.nash.residual < 1e-12
    assert np.ptp(found.nash.interval, axis=1).max() < 1e-10


@pytest.mark.parametrize(("outside", "cartel"), [(-10, 11.25), (-5, 6.42), (-1, 2.73), (0, 1.925), (1, 1.366)])
def test_an_outside_good_keeps_the_cartel_price_inside(outside: float, cartel: float) -> None:
    assert solve(Industry(Logit(outside=outside))).cartel.prices[0] == pytest.approx(cartel, abs=0.006)


def test_closed_forms_of_the_other_models() -> None:
    linear = solve(Industry(Linear(), (0.0, 0.0)))
    assert linear.nash.prices == pytest.approx(3 / 7)
    assert linear.nash.profits == pytest.approx(0.1959, abs=1e-4)
    assert linear.cartel.prices == pytest.approx(0.5)
    assert linear.cartel.profits == pytest.approx(0.2)
    line = solve(Industry(Hotelling(), (0.0, 0.0)))
    assert (line.nash.prices == 1).all()
    assert (line.cartel.prices == 1.25).all()
    assert line.nash.profits == pytest.approx(0.5)
    assert line.cartel.profits == pytest.approx(0.625)
    klein = solve(Industry(Homogeneous(), (0.0, 0.0)))
    assert (klein.nash.profits == 0).all()
    assert klein.cartel.profits == pytest.approx(0.125)


@settings(max_examples=40, deadline=None)
@given(industry=industries)
def test_no_firm_gains_by_leaving_the_nash_prices(industry: Industry) -> None:
    try:
        nash = solve(industry).nash
    except SettingsError:  # a corner; test_what_cannot_be_is_refused has the words
        return
    for firm in range(industry.firms):
        own = np.concatenate(
            [np.linspace(0.01, 4 * nash.prices.max(), 4001), nash.prices[firm] * (1 + np.linspace(-1e-3, 1e-3, 401))]
        )
        prices = np.repeat(nash.prices[:, None], len(own), axis=1)
        prices[firm] = own
        assert industry.flow(prices)[firm].max() <= nash.profits[firm] + 1e-10


@settings(max_examples=40, deadline=None)
@given(industry=industries, seed=st.integers(0, 1000))
def test_no_prices_earn_jointly_more_than_the_cartel_prices(industry: Industry, seed: int) -> None:
    try:
        cartel = solve(industry).cartel
    except SettingsError:
        return
    rng = np.random.default_rng(seed)
    near = cartel.prices[:, None] * (1 + rng.normal(0, 1, (industry.firms, 2000)) * 10.0 ** rng.uniform(-4, 0, 2000))
    far = rng.uniform(0.01, 3 * cartel.prices.max(), (industry.firms, 2000))
    trial = np.abs(np.concatenate([near, far], axis=1)) + 1e-6
    assert industry.flow(trial).sum(axis=0).max() <= cartel.profits.sum() + 1e-10


def newton(industry: Industry, start: np.ndarray) -> np.ndarray:
    """Nash prices by Newton's method on differentiated first-order conditions: shares no code with `solve`."""
    n, h = industry.firms, 1e-5

    def marginal(prices: np.ndarray) -> np.ndarray:
        found = np.empty(n)
        for i in range(n):
            up, down = prices.copy(), prices.copy()
            up[i] += h
            down[i] -= h
            found[i] = (industry.flow(up[:, None])[i, 0] - industry.flow(down[:, None])[i, 0]) / (2 * h)
        return found

    prices = start.copy()
    for _ in range(8):
        jacobian = np.empty((n, n))
        for j in range(n):
            up, down = prices.copy(), prices.copy()
            up[j] += 1e-4
            down[j] -= 1e-4
            jacobian[:, j] = (marginal(up) - marginal(down)) / 2e-4
        prices = prices - np.linalg.solve(jacobian, marginal(prices))
    return prices


@settings(max_examples=30, deadline=None)
@given(industry=industries)
def test_an_independent_newton_iteration_agrees(industry: Industry) -> None:
    try:
        nash = solve(industry).nash
    except SettingsError:
        return
    if isinstance(industry.demand, Hotelling | Linear) and (industry.demand.quantities(nash.prices) < 0.05).any():
        return  # too near a kink to differentiate across
    assert newton(industry, nash.prices * 1.01) == pytest.approx(nash.prices, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    quality=st.tuples(st.floats(1, 3), st.floats(1, 3), st.floats(1, 3)),
    mu=st.floats(0.1, 1.0),
    price=st.tuples(st.floats(0, 4), st.floats(0, 4), st.floats(0, 4)),
)
def test_the_certified_slope_bounds_the_best_response_everywhere(quality, mu, price) -> None:
    """Two far price vectors: best responses are closer by the factor L, as the contraction claims."""
    industry = Industry(Logit(quality, mu), (1.0, 1.0, 1.0))
    slope = solve(industry).nash.slope
    one, other = np.array(price), np.array(price[::-1]) + 0.3

    def respond(prices: np.ndarray) -> np.ndarray:
        odds = np.exp((np.array(quality) - prices) / mu)
        rivals = 1 + odds.sum() - odds
        return 1 + mu * (1 + log_lambert((np.array(quality) - 1) / mu - 1 - np.log(rivals)))

    assert np.abs(respond(one) - respond(other)).max() <= slope * np.abs(one - other).max() + 1e-12


@settings(max_examples=50, deadline=None)
@given(price=st.lists(st.floats(0.2, 5), min_size=2, max_size=2), steps=st.integers(0, 3))
def test_an_interval_holds_the_nash_price_however_far_the_iteration_got(price: list[float], steps: int) -> None:
    """`contracted` starts anywhere and stops anywhere: its interval is a bound, not a hope."""
    industry = calvano()
    exact, slope = 1.472926660030623, solve(industry).nash.slope

    def respond(prices: np.ndarray) -> np.ndarray:
        rivals = 1 + np.exp((2 - prices[::-1]) / 0.25)
        return 1 + 0.25 * (1 + log_lambert(np.full(2, 3.0) - np.log(rivals)))

    prices = np.array(price)
    for _ in range(steps):
        prices = respond(prices)
    left = np.abs(respond(prices) - prices).max() / (1 - slope)
    assert (np.abs(prices - exact) <= left + 1e-12).all()


def test_lambert() -> None:
    y = np.array([-30.0, -1.0, 0.0, 1.0, 2.0, 50.0, 700.0, 1e5])
    w = log_lambert(y)
    assert w + np.log(w) == pytest.approx(y, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize(
    ("box", "midpoint", "random", "low", "high"),
    [
        ((1.427722, 1.970186), 0.707, 0.52, -0.17, 0.99),
        ((1.0, 2.0), 0.10, -0.44, -1.95, 0.96),
        ((1.0, 3.0), 0.96, -0.28, -1.95, -1.64),
        ((0.0, 3.0), 0.10, -2.45, -6.3, -1.6),
    ],
)
def test_null_gains(box, midpoint, random, low, high) -> None:
    found = null_gains(solve(calvano()), box)
    assert (found.midpoint, found.random) == pytest.approx((midpoint, random), abs=0.005)
    assert found.lowest == pytest.approx(low, abs=0.05)
    assert found.highest == pytest.approx(high, abs=0.05)
    assert found.nash == pytest.approx(0, abs=1e-9)
    assert found.myopic == pytest.approx(0, abs=1e-5)


def test_gains_are_zero_at_nash_and_one_at_the_cartel() -> None:
    found = solve(Industry(Logit((2.0, 2.3)), (1.0, 1.1)))
    for end, value in ((found.nash, 0), (found.cartel, 1)):
        assert profit_gain(found, end.profits) == pytest.approx(value)
        assert firm_gains(found, end.profits) == pytest.approx(value)
        assert price_index(found, end.prices) == pytest.approx(value)


def test_a_firm_the_cartel_does_not_benefit_has_no_gain_of_its_own() -> None:
    found = solve(Industry(Logit((2.0, 2.0)), (1.0, 1.6)))
    gains = firm_gains(found, found.nash.profits)
    assert np.isnan(gains[1])
    assert gains[0] == pytest.approx(0)


def test_frontier() -> None:
    assert critical_discount(solve(calvano())) == pytest.approx(0.3931, abs=1e-4)
    assert reaction_discount(np.array([0.5, 1, 5, 1, 5]), np.array([0, 0, 0, 1, 1]), 0.05) == pytest.approx(
        [0.909, 0.952, 0.990, 0.906, 0.942], abs=6e-4
    )
    assert longest_latency(np.array([0.5, 5.0]), 0.05, 0.3931) == pytest.approx([16.8, 18.5], abs=0.06)
    assert longest_latency(np.array([0.5, 1, 2, 5]), 0.5, 0.3931) == pytest.approx([0.48, 1.06, 1.42, 1.68], abs=0.006)
    critical = 0.3931
    at = longest_latency(2.0, 0.3, critical)
    assert reaction_discount(2.0, at, 0.3) == pytest.approx(critical)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Industry(Logit(mu=-1.0)), "mu"),
        (lambda: Industry(Logit((np.nan, 2.0))), "quality"),
        (lambda: solve(Industry(Logit(mu=1e-4))), "mu"),
        (lambda: solve(Industry(Logit(outside=-np.inf))), "outside"),
        (lambda: Industry(Linear(substitution=1.0)), "substitution"),
        (lambda: solve(Industry(Linear((1.0, 1.0), 0.9), (0.0, 0.9))), "sell nothing"),
        (lambda: solve(Industry(Hotelling((1.0, 1.0)), (0.0, 0.0))), "leave buyers out"),
        (lambda: Hotelling((1.0, 1.0, 1.0)), "2 firms"),
        (lambda: solve(Industry(Ces(), (0.0, 1.0))), "above 0"),
        (lambda: solve(Industry(Ces(outside=0.0), (1.0, 1.0))), "outside"),
        (lambda: Ces(elasticity=1.0), "elasticity"),
        (lambda: Industry(Logit(), (-1.0, 1.0)), "cost"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as error:
        make()
    assert "\n" not in str(error.value)
