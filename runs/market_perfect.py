"""Claim (R13): the Markov-perfect equilibrium of two firms that reprice one at a time equals sgamesolver's, to 1e-6.

Both follow logit quantal response equilibria from uniform play to the limit, ours by arc length on values and then a
solve on the support, sgamesolver (Eibelshaeuser and Poensgen 2019; `pip install sgamesolver`) on log strategies.
Without it the comparison is left out and said to be. Then: what these equilibria, in which firms answer
present prices alone, gain against the static benchmarks, by grid, clock and rate.

    python runs/market_perfect.py [--grids 7 15 31]
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from offbeat.market.demand import Homogeneous
from offbeat.market.equilibrium import solve
from offbeat.market.gain import profit_gain
from offbeat.market.industry import Industry, calvano
from offbeat.market.learners.sessions import price_grid
from offbeat.market.market import RHO
from offbeat.market.repricing import MarkovPerfect, RepricingGame, certified, markov_perfect

TOLERANCE = 1e-6
"""Of values, beyond the regret that the certificate finds in sgamesolver's own answer: it stops at a finite sharpness,
where firms that mix still gain that much."""
BENCHMARK = solve(calvano())


def grid(m: int) -> np.ndarray:
    """Calvano's, with m prices."""
    return price_grid(float(BENCHMARK.nash.prices[0]), float(BENCHMARK.cartel.prices[0]), m)


def klein(m: int) -> RepricingGame:
    """Klein's: demand 1 - p to the cheaper firm, alternating moves, discount .95 a move."""
    prices = np.arange(1, m + 1) / m
    game = RepricingGame.alternating(Industry(Homogeneous(), (0.0, 0.0)), prices, 0.5, -float(np.log(0.95)))
    return RepricingGame(game.prices, game.flow, 1.0, 0.95)


def by_sgamesolver(library: Any, game: RepricingGame) -> tuple[np.ndarray, np.ndarray]:
    """(strategies (2, m, m), values (2, 2, m): by firm, by who acts) of its equilibrium. State (i, p): firm i acts and
    sees p.
    """
    m, payoffs, transitions = len(game.prices), [], []
    for i in range(2):
        for p in range(m):
            paid, onward = np.zeros((2, m)), np.zeros((m, 2 * m))
            paid[i], paid[1 - i] = game.span * game.flow[i, :, p], game.span * game.flow[1 - i, p, :]
            onward[:, i * m + p] += game.again[i]
            onward[np.arange(m), (1 - i) * m + np.arange(m)] += 1 - game.again[i]
            shape = (m, 1) if i == 0 else (1, m)
            payoffs.append(paid.reshape(2, *shape))
            transitions.append(onward.reshape(*shape, 2 * m))
    path = library.homotopy.QRE(library.SGame(payoffs, transitions, game.discount))
    path.solver_setup()
    path.solver.verbose, path.solver.ds_max, path.solver.convergence_tol = 0, 1e6, 1e-13  # 1e-7 stops at 1e-4
    path.solve()
    found, value = np.array(path.equilibrium.strategies), np.array(path.equilibrium.values)
    strategy = np.stack([found[i * m : (i + 1) * m, i, :m] for i in range(2)])
    acting = np.stack([value.T[i].reshape(2, m) for i in range(2)])
    return strategy, acting


def compare(library: Any) -> bool:
    """One line a game; whether all agree."""
    games = {f"Klein, {m} prices": klein(m) for m in (3, 6)}
    for m in (3, 5):
        games[f"logit, {m} prices, in turn"] = RepricingGame.alternating(calvano(), grid(m), 1.0, RHO)
        games[f"logit, {m} prices, rates 1 and 2"] = RepricingGame.poisson(calvano(), grid(m), (1.0, 2.0), RHO)
    fine = True
    for name, game in games.items():
        ours = markov_perfect(game)
        strategy, value = by_sgamesolver(library, game)
        both = np.stack([np.stack([ours.value[0], ours.waiting[0]]), np.stack([ours.waiting[1], ours.value[1]])])
        apart = float(np.abs(value - both).max()), float(np.abs(strategy - ours.strategy).max())
        theirs = certified(game, strategy / strategy.sum(axis=-1, keepdims=True))
        good = apart[0] <= TOLERANCE + theirs.regret
        fine &= good
        print(
            f"{name:32} values {apart[0]:.1e} apart, strategies {apart[1]:.1e}; regret {ours.regret:.1e}, theirs"
            f" {theirs.regret:.1e}{'' if good else '  DIFFERS'}",
            flush=True,
        )
    return fine


def told(found: MarkovPerfect) -> str:
    """Prices and gain of an equilibrium."""
    gain = float(profit_gain(BENCHMARK, found.mean_profits[:, None])[0])
    kind = "pure" if found.pure else "mixed"
    return f"price {found.mean_prices.mean():.4f}, profit gain {gain:.3f}, {kind}, regret {found.regret:.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grids", type=int, nargs="+", default=[7, 15, 31])
    asked = parser.parse_args()
    try:
        import sgamesolver
    except ImportError:
        print("sgamesolver is not installed: certificates stand alone")
        fine = True
    else:
        fine = compare(sgamesolver)
    for m in asked.grids:
        print(f"logit, {m:2} prices, in turn:         {told(markov_perfect(_turns(m)))}", flush=True)
        for rate in (0.5, 1.0, 5.0):
            game = RepricingGame.poisson(calvano(), grid(m), (rate, rate), RHO)
            print(f"logit, {m:2} prices, Poisson, rate {rate:g}: {told(markov_perfect(game))}", flush=True)
    sys.exit(0 if fine else 1)


def _turns(m: int) -> RepricingGame:
    return RepricingGame.alternating(calvano(), grid(m), 1.0, RHO)


if __name__ == "__main__":
    main()
