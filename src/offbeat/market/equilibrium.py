"""Static Nash and joint-profit (cartel) prices, each with a residual and an interval that is proved to hold it.

What an interval certifies: the exact price lies in it, and no other does. For Nash prices, because the best-response
map contracts with a slope L < 1 over all prices: |p - p*| <= |BR(p) - p| / (1 - L). For cartel prices, because the
joint optimum is the one root of an increasing function whose sign changes within it, or the maximum of a concave
quadratic. Evaluated in double precision (see `certificate`). docs/market.md has the derivations.
Knows no time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offbeat.errors import SettingsError
from offbeat.market.certificate import Certified, bracketed, contracted, exact, log_lambert, root
from offbeat.market.demand import Array, Ces, Homogeneous, Hotelling, Linear, Logit
from offbeat.market.industry import Industry


@dataclass(frozen=True)
class Benchmark:
    """The two ends of the profit gain of an industry."""

    industry: Industry
    nash: Certified
    cartel: Certified


def solve(industry: Industry) -> Benchmark:
    """Nash and cartel of any of the five demand models. Raises SettingsError where there is none of the kind certified
    here.
    """
    demand = industry.demand
    if isinstance(demand, Logit):
        nash, cartel = _logit_nash(industry, demand), _logit_cartel(industry, demand)
    elif isinstance(demand, Linear):
        nash, cartel = _linear_nash(industry, demand), _linear_cartel(industry, demand)
    elif isinstance(demand, Hotelling):
        nash, cartel = _hotelling_nash(industry, demand), _hotelling_cartel(industry, demand)
    elif isinstance(demand, Ces):
        nash, cartel = _ces_nash(industry, demand), _ces_cartel(industry, demand)
    elif isinstance(demand, Homogeneous):
        nash, cartel = _homogeneous_nash(industry, demand), _homogeneous_cartel(industry, demand)
    else:
        raise SettingsError(f"demand: no certified solver for {type(demand).__name__}")
    return Benchmark(industry, nash, cartel)


def _logit_nash(industry: Industry, demand: Logit) -> Certified:
    """BR_i = c_i + mu (1 + W(e^{(a_i - c_i)/mu - 1} / B_i)); row i of its slope sums to q_i (1 - q_0 / (1 - q_i)) <
    q_i.
    """
    quality, cost, mu = np.array(demand.quality), np.array(industry.cost), demand.mu
    demand.check(float(cost.min()))
    if industry.firms == 1 and not np.isfinite(demand.outside):
        raise SettingsError("outside: -inf leaves a single firm without a finite price; give a number")

    def respond(prices: Array) -> Array:
        drawn = (quality - prices) / mu
        terms = np.where(np.eye(len(cost), dtype=bool), demand.outside / mu, drawn[None, :])  # own place: outside good
        top = terms.max(axis=1)
        rivals = top + np.log(np.exp(terms - top[:, None]).sum(axis=1))
        return cost + mu * (1 + log_lambert((quality - cost) / mu - 1 - rivals))

    if np.isfinite(demand.outside):
        alone = log_lambert((quality - cost - demand.outside) / mu - 1)
        slope, where = float((alone / (1 + alone)).max()), "all prices"  # share of a firm without rivals, at its best
    else:
        cap = float(cost.max() + 40 * mu * industry.firms)
        with_dear_rivals = respond(np.full(len(cost), cap))
        slope = float((1 - mu / (with_dear_rivals - cost)).max())
        where = f"all prices up to {cap:g}"
    why = f"the best-response map contracts with slope {slope:.6f} over {where}: one equilibrium, in the interval"
    return contracted(industry, respond, cost + 2 * mu, slope, why)


def _logit_cartel(industry: Industry, demand: Logit) -> Certified:
    """One markup m for all: m / mu = 1 + sum_i e^{(a_i - c_i - a_0 - m)/mu}; the left minus the right increases in
    m.
    """
    if not np.isfinite(demand.outside):
        raise SettingsError("outside: -inf (no outside good) leaves no finite joint-profit price; give a number")
    cost, mu = np.array(industry.cost), demand.mu
    drawn = (np.array(demand.quality) - cost - demand.outside) / mu
    top = float(drawn.max())
    spread = float(np.exp(drawn - top).sum())

    def gap(x: float) -> float:
        return x - 1 - spread * float(np.exp(top - x))

    low, high = root(gap, 1.0, 2.0 + max(0.0, top) + float(np.log(spread)) + 1.0)
    return bracketed(industry, cost + mu * low, cost + mu * high, "one markup, the only root of an increasing function")


def _linear_nash(industry: Industry, demand: Linear) -> Certified:
    """BR_i = (a_i + c_i - d s_i / (1 + (n - 2) d)) / 2 with s_i = sum_{j != i} (a_j - p_j); profit is concave in own
    price.
    """
    quality, cost, d, n = np.array(demand.quality), np.array(industry.cost), demand.substitution, industry.firms
    share = d / (1 + (n - 2) * d) if n > 1 else 0.0

    def respond(prices: Array) -> Array:
        surplus = quality - prices
        return np.asarray(0.5 * (quality + cost - share * (surplus.sum() - surplus)))

    slope = 0.5 * share * (n - 1)
    why = f"the best-response map contracts with slope {slope:.6f} while every firm sells"
    return _selling(industry, contracted(industry, respond, 0.5 * (quality + cost), slope, why))


def _selling(industry: Industry, found: Certified) -> Certified:
    """`found`, if every firm sells at it."""
    sold = industry.demand.quantities(found.prices)
    if not (sold > 0).all():
        idle = int(np.argmin(sold))
        raise SettingsError(
            f"cost: firm {idle} with cost {industry.cost[idle]:g} would sell nothing; leave it out or lower its cost"
        )
    return found


def _linear_cartel(industry: Industry, demand: Linear) -> Certified:
    """Joint profit is a concave quadratic with its top at (a + c) / 2."""
    prices = 0.5 * (np.array(demand.quality) + np.array(industry.cost))
    return _selling(
        industry, exact(industry, prices, "the top of a concave quadratic, in closed form, while every firm sells")
    )


def _hotelling_nash(industry: Industry, demand: Hotelling) -> Certified:
    """BR_i = (p_j + c_i + theta + v_i - v_j) / 2 where the line is covered; profit is quasi-concave: BR is global."""
    value, cost, way = np.array(demand.quality), np.array(industry.cost), demand.transport

    def respond(prices: Array) -> Array:
        return np.asarray(0.5 * (prices[::-1] + cost + way + value - value[::-1]))

    why = "the best-response map contracts with slope 0.5 while the whole line buys from both firms"
    found = contracted(industry, respond, cost + way, 0.5, why)
    sold = 0.5 + 0.5 * ((value - found.prices) - (value - found.prices)[::-1]) / way
    if not ((sold > 0).all() and ((value - found.prices) / way >= sold).all()):
        raise SettingsError(
            f"quality: values {demand.quality} with transport {way:g} leave buyers out at the Nash prices; raise them"
        )
    return found


def _hotelling_cartel(industry: Industry, demand: Hotelling) -> Certified:
    """The marginal buyer keeps nothing: maximise sum_i (v_i - theta x_i - c_i) x_i over x_1 + x_2 <= 1, concave."""
    value, cost, way = np.array(demand.quality), np.array(industry.cost), demand.transport
    margin = value - cost
    sold = np.maximum(margin, 0.0) / (2 * way)
    if sold.sum() > 1:
        first = float(np.clip(0.5 + (margin[0] - margin[1]) / (4 * way), 0.0, 1.0))
        sold = np.array([first, 1 - first])
    prices = value - way * sold
    return exact(
        industry, prices, "the top of a concave quadratic in market shares, in closed form", (prices - cost) * sold
    )


def _ces_nash(industry: Industry, demand: Ces) -> Certified:
    """p_i = c_i e_i / (e_i - 1), e_i = s - (s - 1) w_i; in logs row i of the slope sums to at most (s - 1) / s."""
    if min(industry.cost) <= 0:
        raise SettingsError("cost: CES demand needs costs above 0 (a price is a markup on cost)")
    if industry.firms == 1 and demand.outside == 0:
        raise SettingsError("outside: 0 leaves a single firm without a finite price; give a number above 0")
    weight, cost, s = np.exp(np.array(demand.quality)), np.array(industry.cost), demand.elasticity

    def respond(prices: Array) -> Array:
        spent = weight * prices ** (1 - s)
        rivals = spent.sum() - spent + demand.outside

        def one(i: int) -> float:
            def gap(markup: float) -> float:
                own = weight[i] * (cost[i] * markup) ** (1 - s)
                share = own / (own + rivals[i])
                return float(markup - 1 - 1 / ((s - 1) * (1 - share)))

            high = 2.0 + 1 / (s - 1)
            while gap(high) < 0:
                high *= 2
            return float(cost[i] * root(gap, 1.0, high)[1])

        return np.array([one(i) for i in range(len(cost))])

    slope = (s - 1) / s
    why = f"in log prices the best-response map contracts with slope {slope:.6f} over all prices: one equilibrium"
    return contracted(industry, respond, cost * s / (s - 1), slope, why, logs=True)


def _ces_cartel(industry: Industry, demand: Ces) -> Certified:
    """One Lerner index m for all: m (s - (s - 1) W(m)) = 1, W the inside share; the left increases in m."""
    if demand.outside <= 0:
        raise SettingsError("outside: 0 (no outside good) leaves no finite joint-profit price; give a number above 0")
    weight, cost, s = np.exp(np.array(demand.quality)), np.array(industry.cost), demand.elasticity

    def gap(markup: float) -> float:
        spent = float((weight * (cost * markup) ** (1 - s)).sum())
        share = spent / (spent + demand.outside)
        return markup - 1 - 1 / ((s - 1) * (1 - share))

    high = 2.0
    while gap(high) < 0:
        high *= 2
    low, high = root(gap, 1.0, high)
    return bracketed(industry, cost * low, cost * high, "one relative markup, the only root of an increasing function")


def _homogeneous_nash(industry: Industry, demand: Homogeneous) -> Certified:
    """Bertrand: the price of the second lowest cost, or the cheapest firm's monopoly price where that is lower."""
    cost = np.array(industry.cost)
    order = np.sort(cost)
    best = 0.5 * (demand.intercept + order[0])
    price = min(float(order[1]), best) if len(order) > 1 else best
    if price >= demand.intercept:
        raise SettingsError(f"cost: {price:g} is not below the intercept {demand.intercept:g}: nobody would buy")
    cheapest = cost == order[0]
    profits = np.where(cheapest, (price - cost) * (demand.intercept - price) / cheapest.sum(), 0.0)
    prices = np.maximum(cost, price)
    why = "Bertrand's argument: undercutting goes on down to the second lowest cost (a tie goes to the lowest)"
    return exact(industry, prices, why, profits)


def _homogeneous_cartel(industry: Industry, demand: Homogeneous) -> Certified:
    """The firms of lowest cost share the monopoly profit; the others ask so much that nobody buys."""
    cost = np.array(industry.cost)
    cheapest = cost == cost.min()
    prices = np.where(cheapest, 0.5 * (demand.intercept + cost.min()), np.maximum(demand.intercept, cost))
    return exact(industry, prices, "the top of a concave quadratic, in closed form")
