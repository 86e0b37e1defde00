"""Markov-perfect repricing: against enumeration, value iteration, the market itself and another solver."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from offbeat.errors import SettingsError
from offbeat.market.clocks import Clock
from offbeat.market.course import play
from offbeat.market.demand import Homogeneous
from offbeat.market.equilibrium import solve
from offbeat.market.gain import profit_gain
from offbeat.market.industry import Industry, calvano
from offbeat.market.learners.sessions import price_grid
from offbeat.market.market import Decision
from offbeat.market.repricing import RepricingGame, certified, markov_perfect
from offbeat.market.scenario import Scenario

BENCHMARK = solve(calvano())
RHO = 0.05


def grid(m: int) -> np.ndarray:
    return price_grid(float(BENCHMARK.nash.prices[0]), float(BENCHMARK.cartel.prices[0]), m)


def klein(m: int) -> RepricingGame:
    """A price holds for two periods; demand 1 - p for the cheaper, discount .95 a period."""
    game = RepricingGame.alternating(Industry(Homogeneous(), (0.0, 0.0)), np.arange(1, m + 1) / m, 0.5, -np.log(0.95))
    return RepricingGame(game.prices, game.flow, 1.0, 0.95)


def random_strategy(m: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(m), size=(2, m))


@pytest.mark.parametrize(
    "game",
    [
        RepricingGame.alternating(calvano(), grid(7), 1.0, RHO),
        RepricingGame.poisson(calvano(), grid(7), (1.0, 1.0), RHO),
        RepricingGame.poisson(calvano(), grid(7), (0.5, 5.0), RHO),
        klein(6),
    ],
)
def test_no_deviation_pays(game: RepricingGame) -> None:
    found = markov_perfect(game)
    assert found.regret < 1e-9
    np.testing.assert_allclose(found.strategy.sum(axis=-1), 1)
    assert found.strategy.min() >= 0


def test_without_a_future_prices_are_static_best_replies() -> None:
    game = RepricingGame(grid(9), RepricingGame.alternating(calvano(), grid(9), 1.0, RHO).flow, 1.0, 0.0)
    found = markov_perfect(game)
    assert found.pure
    np.testing.assert_array_equal(found.strategy.argmax(axis=-1), game.flow.argmax(axis=1))


def test_certificate_is_zero_exactly_at_the_pure_equilibria_that_enumeration_finds() -> None:
    game = klein(3)
    replies = list(itertools.product(range(3), repeat=3))
    equilibria = []
    for one, other in itertools.product(replies, replies):
        strategy = np.stack([np.eye(3)[list(one)], np.eye(3)[list(other)]])
        if certified(game, strategy).gap < 1e-12:
            equilibria.append(strategy)
    assert 1 <= len(equilibria) < len(replies) ** 2 / 10
    found = markov_perfect(game)
    assert found.pure
    assert any(np.allclose(found.strategy, strategy) for strategy in equilibria)


def test_regret_bounds_what_the_best_reply_adds() -> None:
    game = RepricingGame.poisson(calvano(), grid(5), (1.0, 2.0), RHO)
    for seed in range(3):
        strategy = random_strategy(5, seed)
        found = certified(game, strategy)
        value, waiting = found.value.copy(), found.waiting.copy()
        for _ in range(2000):  # value iteration of each firm's best reply, the other's strategy standing still
            for i in range(2):
                j = 1 - i
                paid, ahead = game.span * game.flow[i], game.discount * game.again[i]
                behind = game.discount * game.again[j]
                worth = paid.T + ahead * value[i][:, None] + (game.discount - ahead) * waiting[i]
                value[i] = worth.max(axis=1)
                earned = paid + behind * waiting[i][:, None] + (game.discount - behind) * value[i]
                waiting[i] = (strategy[j] * earned).sum(axis=1)
        added = value - found.value
        assert added.min() >= -1e-9
        assert found.gap - 1e-9 <= added.max() <= found.regret + 1e-9


@pytest.mark.parametrize(
    ("clock", "game"),
    [
        (Clock.alternating(2, 1.0), RepricingGame.alternating(calvano(), grid(4), 1.0, RHO)),
        (Clock.poisson(1.0, 3.0), RepricingGame.poisson(calvano(), grid(4), (1.0, 3.0), RHO)),
    ],
)
def test_long_run_profit_is_what_the_market_pays(clock: Clock, game: RepricingGame) -> None:
    strategy = random_strategy(4, 7)
    rng = np.random.default_rng(0)

    def policy(decision: Decision) -> np.ndarray:
        seen = np.abs(decision.seen[:, 1:] - game.prices).argmin(axis=1)
        chances = strategy[decision.firm, seen].cumsum(axis=1)
        return game.prices[(rng.random(len(decision))[:, None] > chances[:, :-1]).sum(axis=1)]

    scenario = Scenario(clock=clock, rho=RHO, box=(1.0, 2.5), horizon=80.0)
    course = play(scenario.open(400, 1), [policy, policy], 80.0)
    earned = course.mean_profit(10.0, 80.0)
    exact = certified(game, strategy).mean_profits
    error = earned.std(axis=1) / np.sqrt(earned.shape[1])
    assert (np.abs(earned.mean(axis=1) - exact) < 4 * error).all()


def test_patient_firms_that_answer_present_prices_are_dearer_than_nash_and_impatient_ones_are_not() -> None:
    """On Calvano's grid: a cut is answered before it has paid (Maskin and Tirole 1988)."""
    found = markov_perfect(RepricingGame.alternating(calvano(), grid(15), 1.0, RHO))
    gain = float(profit_gain(BENCHMARK, found.mean_profits[:, None])[0])
    assert 0.2 < gain < 0.6
    found = markov_perfect(RepricingGame.poisson(calvano(), grid(15), (1e-3, 1e-3), RHO))
    assert found.mean_prices == pytest.approx(BENCHMARK.nash.prices, abs=0.033)  # a step of the grid


def test_three_firms_are_refused() -> None:
    with pytest.raises(SettingsError, match="3 firms"):
        RepricingGame.alternating(calvano(3), grid(3), 1.0, RHO)
