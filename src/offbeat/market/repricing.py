"""Markov-perfect prices of two firms that reprice one at a time, on a grid, with a certificate.

At a decision the firm that acts sees the other's price; who acts next does not depend on prices (in turn, or competing
Poisson clocks), so the other's price is all that matters. Found along the path of logit quantal response equilibria
from uniform play to the limit (the homotopy of sgamesolver, Eibelshaeuser and Poensgen 2019), then solved on its
support. *The certificate, not the path, is the claim*: it bounds what any strategy, with memory or without, could
add. There may be other equilibria. Latency is 0; knows no learner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import SettingsError
from offbeat.market.demand import Array
from offbeat.market.industry import Industry

SUPPORT = 1e-7
"""A price used with a smaller chance at the end of the path is not in the support."""
REGRET = 1e-6
"""More than that and an equilibrium is not told."""
SHARPEST = float(np.log(1e7))
STEPS = 20_000
CLOSE = 1e-10
"""Relative size of the last Newton step to the path; where the path is sharp rounding allows no less."""


@dataclass(frozen=True)
class RepricingGame:
    """`prices` (m,); `flow` (2, m, m): profit flow of a firm at own price (first index) and the rival's; `span`: the
    expected discounted time until the next decision; `discount`: the expected discount at it; `again` (2,): the chance
    that the firm that acts is also the next to act.
    """

    prices: Array
    flow: Array
    span: float
    discount: float
    again: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        if not 0 <= self.discount < 1:
            raise SettingsError(f"discount: {self.discount} must be 0 or more and below 1")

    @classmethod
    def alternating(cls, industry: Industry, prices: Array, rate: float, rho: float) -> RepricingGame:
        """Each firm every 1 / `rate` units of time, the other half-way between."""
        discount = float(np.exp(-rho / (2 * rate)))
        return cls(prices, _flows(industry, prices), (1 - discount) / rho, discount)

    @classmethod
    def poisson(cls, industry: Industry, prices: Array, rates: tuple[float, float], rho: float) -> RepricingGame:
        """Independent Poisson clocks."""
        both = sum(rates)
        again = (rates[0] / both, rates[1] / both)
        return cls(prices, _flows(industry, prices), 1 / (both + rho), both / (both + rho), again)


def _flows(industry: Industry, prices: Array) -> Array:
    if industry.firms != 2:
        raise SettingsError(f"cost: {industry.firms} firms; Markov-perfect prices are solved for two")
    own, rival = (grid.ravel() for grid in np.meshgrid(prices, prices, indexing="ij"))
    shape = (len(prices), len(prices))
    first = industry.flow(np.stack([own, rival]))[0].reshape(shape)
    second = industry.flow(np.stack([rival, own]))[1].reshape(shape)
    return np.stack([first, second])


@dataclass(frozen=True)
class MarkovPerfect:
    """`strategy` (2, m, m): chance of each price (last index) by the rival's price. `value` (2, m): discounted profit
    at the own decision, by the rival's price; `waiting` (2, m): at the rival's decision, by the own price. `gap`: the
    most that one deviation adds; `regret` = gap / (1 - discount): the most that any strategy adds. `mean_prices`,
    `mean_profits` (2,): long-run means, from uniform starts.
    """

    game: RepricingGame
    strategy: Array
    value: Array
    waiting: Array
    gap: float
    regret: float
    mean_prices: Array
    mean_profits: Array

    @property
    def pure(self) -> bool:
        """Whether no firm ever mixes."""
        return bool((self.strategy.max(axis=-1) > 1 - 1e-9).all())


def markov_perfect(game: RepricingGame) -> MarkovPerfect:
    """One Markov-perfect equilibrium. Raises SettingsError where the path ends before a certificate is reached."""
    strategy = _Path(game).follow()
    found = certified(game, strategy)
    if (solved := _on_support(game, strategy, strategy > SUPPORT)) is not None:
        found = min(found, certified(game, solved), key=lambda end: end.gap)
    if found.regret > REGRET:
        raise SettingsError("prices: no Markov-perfect equilibrium was certified on this grid; take fewer prices")
    return found


def certified(game: RepricingGame, strategy: Array) -> MarkovPerfect:
    """The values of both firms following `strategy` (2, m, m), from linear equations, and what deviating adds.

    Against a rival that follows a Markov strategy some best reply is Markov, and one more maximisation adds at most
    `gap` at every state, so no reply adds more than gap / (1 - discount).
    """
    m = len(game.prices)
    value, waiting, gap = np.empty((2, m)), np.empty((2, m)), 0.0
    for i in range(2):
        j = 1 - i
        own, other = strategy[i], strategy[j]
        ahead, behind = game.discount * game.again[i], game.discount * game.again[j]
        move, wait = game.discount - ahead, game.discount - behind
        paid = game.span * game.flow[i]
        system = np.zeros((2 * m, 2 * m))
        system[:m, :m], system[:m, m:] = (1 - ahead) * np.eye(m), -move * own
        system[m:, m:], system[m:, :m] = (1 - behind) * np.eye(m), -wait * other
        due = np.concatenate([(own * paid.T).sum(axis=1), (other * paid).sum(axis=1)])
        value[i], waiting[i] = np.split(np.linalg.solve(system, due), 2)
        worth = paid.T + ahead * value[i][:, None] + move * waiting[i][None, :]
        gap = max(gap, float((worth.max(axis=1) - value[i]).max()))
    prices, profits = _means(game, strategy)
    return MarkovPerfect(game, strategy, value, waiting, gap, gap / (1 - game.discount), prices, profits)


def _means(game: RepricingGame, strategy: Array) -> tuple[Array, Array]:
    """Long-run mean prices and profit flows (2,). State (i, p): firm i acts and sees the rival's price p."""
    m = len(game.prices)
    chain = np.zeros((2, m, 2, m))
    for i in range(2):
        chain[i, np.arange(m), i, np.arange(m)] += game.again[i]
        chain[i, :, 1 - i, :] += (1 - game.again[i]) * strategy[i]
    lazy = 0.5 * (np.eye(2 * m) + chain.reshape(2 * m, 2 * m))
    for _ in range(60):  # to the long-run mean, cycles or not
        lazy = lazy @ lazy
        lazy /= lazy.sum(axis=1, keepdims=True)
    share = np.full(2 * m, 0.5 / m) @ lazy
    prices, profits = np.zeros(2), np.zeros(2)
    for i in range(2):
        joint = share.reshape(2, m)[i][:, None] * strategy[i]  # (rival's price, own price)
        for firm, both in ((i, joint.T), (1 - i, joint)):  # (own, rival)
            prices[firm] += game.prices @ both.sum(axis=1)
            profits[firm] += float((game.flow[firm] * both).sum())
    return prices, profits


class _Path:
    """Logit quantal response equilibria by sharpness s, followed by arc length. `point` is (V_0, W_0, V_1, W_1, ln(1 +
    s)): values (m,) at the own decision by the rival's price, and at the rival's by the own. A firm mixes by softmax(s
    Q), Q(p, a) = paid(a, p) + discount (again V(p) + (1 - again) W(a)).
    """

    def __init__(self, game: RepricingGame) -> None:
        self.game, self.m = game, len(game.prices)
        self.paid = game.span * game.flow
        uniform = certified(game, np.full((2, self.m, self.m), 1 / self.m))
        ends = [uniform.value[0], uniform.waiting[0], uniform.value[1], uniform.waiting[1], np.zeros(1)]
        self.point = np.concatenate(ends)

    def _split(self, z: Array) -> tuple[Array, Array]:
        parts = z.reshape(2, 2, self.m)
        return parts[:, 0], parts[:, 1]

    def _worth(self, z: Array) -> Array:
        """(2, m, m): Q of the own price (last index) by the rival's."""
        value, waiting = self._split(z)
        beta, again = self.game.discount, np.array(self.game.again)[:, None, None]
        return self.paid.transpose(0, 2, 1) + beta * (again * value[:, :, None] + (1 - again) * waiting[:, None, :])

    def strategies(self) -> Array:
        """(2, m, m) at the present point."""
        return _softmax(np.expm1(self.point[-1]) * self._worth(self.point[:-1]))

    def _system(self, point: Array) -> tuple[Array, Array]:
        """Residual (4m,) and Jacobian (4m, 4m + 1)."""
        m, beta = self.m, self.game.discount
        z, sharpness = point[:-1], float(np.expm1(point[-1]))
        value, waiting = self._split(z)
        worth = self._worth(z)
        mixed = _softmax(sharpness * worth)
        mean = (mixed * worth).sum(axis=-1)
        residual, jacobian = np.empty((2, 2, m)), np.zeros((2, 2, m, 4 * m + 1))
        rows = np.arange(m)
        for i in range(2):
            j = 1 - i
            move, wait = beta * (1 - self.game.again[i]), beta * (1 - self.game.again[j])
            v, w, w_other = 2 * i * m, (2 * i + 1) * m, (2 * j + 1) * m
            residual[i, 0] = value[i] - mean[i]
            jacobian[i, 0, rows, v + rows] = 1 - beta * self.game.again[i]
            slope = mixed[i] * (1 + sharpness * (worth[i] - mean[i][:, None]))
            jacobian[i, 0, :, w : w + m] = -move * slope
            jacobian[i, 0, :, -1] = -(mixed[i] * worth[i] * (worth[i] - mean[i][:, None])).sum(axis=1)
            earned = self.paid[i] + beta * self.game.again[j] * waiting[i][:, None] + wait * value[i][None, :]
            expected = (mixed[j] * earned).sum(axis=1)
            residual[i, 1] = waiting[i] - expected
            jacobian[i, 1, rows, w + rows] += 1 - beta * self.game.again[j]
            jacobian[i, 1, :, v : v + m] += -wait * mixed[j]
            turned = sharpness * mixed[j] * (earned - expected[:, None])
            jacobian[i, 1, :, w_other : w_other + m] += -wait * turned
            jacobian[i, 1, :, -1] = -(mixed[j] * (worth[j] - mean[j][:, None]) * earned).sum(axis=1)
        jacobian[..., -1] *= 1 + sharpness
        return residual.reshape(-1), jacobian.reshape(4 * m, 4 * m + 1)

    def _correct(self, point: Array, along: Array) -> tuple[Array, int] | None:
        """Newton back to the path, at right angles to `along` (4m + 1,): (point, iterations); None where it fails."""
        point, start = point.copy(), point
        for iteration in range(8):
            residual, jacobian = self._system(point)
            square = np.vstack([jacobian, along])
            step = np.linalg.solve(square, np.append(-residual, -along @ (point - start)))
            point += step
            if not float(np.abs(step).max()) < 10:
                return None
            if float(np.abs(step[:-1]).max()) <= CLOSE * (1 + float(np.abs(point[:-1]).max())):
                return point, iteration + 1
        return None

    def follow(self) -> Array:
        """Strategies (2, m, m) at the end of the path, or as far as it could be followed; it may turn on the way."""
        along, stride = np.append(np.zeros(4 * self.m), 1.0), 0.05
        for _ in range(STEPS):
            _, jacobian = self._system(self.point)
            forward = np.linalg.solve(np.vstack([jacobian, along]), np.append(np.zeros(4 * self.m), 1.0))
            forward /= np.linalg.norm(forward)
            ahead = self._correct(self.point + stride * forward, forward)
            if ahead is None or float(np.abs(ahead[0] - self.point).max()) > 3 * stride:
                stride /= 2
                if stride < 1e-10:
                    break
                continue
            self.point, along = ahead[0], forward
            stride = min(1.0, 1.5 * stride) if ahead[1] <= 3 else stride
            if self.point[-1] > SHARPEST:
                break
        return self.strategies()


def _on_support(game: RepricingGame, strategy: Array, support: NDArray[np.bool_]) -> Array | None:
    """Strategies (2, m, m) that mix over `support` so that all prices in it are worth the same, by Newton's method from
    `strategy`; None where there are none or they are not chances.
    """
    m, beta = len(game.prices), game.discount
    place = np.full((2, m, m), -1)
    place[support] = 4 * m + np.arange(support.sum())
    size = 4 * m + int(support.sum())
    found = certified(game, strategy)
    x = np.concatenate([found.value[0], found.waiting[0], found.value[1], found.waiting[1], strategy[support]])
    for _ in range(20):
        residual, jacobian = np.zeros(size), np.zeros((size, size))
        row = 0
        for i in range(2):
            j = 1 - i
            v, w, paid = 2 * i * m, (2 * i + 1) * m, game.span * game.flow[i]
            ahead, behind = beta * game.again[i], beta * game.again[j]
            move, wait = beta - ahead, beta - behind
            for p in range(m):
                for a in np.flatnonzero(support[i, p]):  # worth of a = value at p
                    residual[row] = (1 - ahead) * x[v + p] - paid[a, p] - move * x[w + a]
                    jacobian[row, v + p], jacobian[row, w + a] = 1 - ahead, -move
                    row += 1
                own = place[i, p, support[i, p]]
                residual[row], jacobian[row, own] = x[own].sum() - 1, 1.0
                row += 1
                other, used = place[j, p, support[j, p]], np.flatnonzero(support[j, p])  # p: own price, rival moves
                earned = paid[p, used] + wait * x[v + used]
                residual[row] = (1 - behind) * x[w + p] - x[other] @ earned
                jacobian[row, w + p] += 1 - behind
                jacobian[row, other] -= earned
                jacobian[row, v + used] -= wait * x[other]
                row += 1
        try:
            step = np.linalg.solve(jacobian, -residual)
        except np.linalg.LinAlgError:
            return None
        x += step
        if float(np.abs(step).max()) < 1e-13 * (1 + float(np.abs(x).max())):
            break
    mixed = np.zeros((2, m, m))
    mixed[support] = x[4 * m :]
    if not np.isfinite(mixed).all() or mixed.min() < -1e-10:
        return None
    mixed = np.maximum(mixed, 0.0)
    return np.asarray(mixed / mixed.sum(axis=-1, keepdims=True))


def _softmax(x: Array) -> Array:
    weight = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(weight / weight.sum(axis=-1, keepdims=True))
