"""Claims R7, R8, R10: controls of tabular Q-learning in the repeated game.

R7: without memory, without patience and with more firms the gain is lower. R8: in alternating moves (Klein, RAND
52(3) 2021) few prices give a fixed collusive price, many give Edgeworth cycles between the competitive cycle's
profit and the joint maximum. R10 (Asker, Fershtman and Pakes): updating every action with what it would have earned
("synchronous" there, `counterfactual` here) competes, updating the chosen action alone ends near monopoly, at no
weight on the future.

python runs/market_sessions.py --sessions 100
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from offbeat.eventtime.streams import stream_seed
from offbeat.market.equilibrium import solve
from offbeat.market.estimate import estimate
from offbeat.market.gain import profit_gain
from offbeat.market.industry import calvano
from offbeat.market.learners.sessions import PriceGame, Sessions, SessionSettings, price_grid
from offbeat.market.learners.sessions_kernel import play_in_turn
from offbeat.market.learners.strategies import Strategies

KLEIN_PERIODS, KLEIN_ALPHA, KLEIN_DISCOUNT = 500_000, 0.3, 0.95


def gains(firms: int, settings: SessionSettings, sessions: int, most: int) -> np.ndarray:
    """Profit gain of each session on its greedy path."""
    benchmark = solve(calvano(firms))
    grid = price_grid(float(benchmark.nash.prices[0]), float(benchmark.cartel.prices[0]))
    played = Sessions(PriceGame.on_grid(benchmark.industry, grid), settings, list(range(sessions)))
    while not played.over and played.count[:, 1].max() < most:
        played.advance()
        print(f"\r{int(played.converged.sum())} of {sessions} converged", end="", file=sys.stderr, flush=True)
    greedy = played.greedy
    if not settings.memory:  # the same action in every state
        greedy = np.repeat(greedy, played.game.actions**firms, axis=2)
    learnt = Strategies(played.game, greedy, played.count[:, 0])
    print(f"\r{int(played.converged.sum())} of {sessions} converged", file=sys.stderr)
    return profit_gain(benchmark, learnt.mean_profits().T)


def klein(actions: int, sessions: int, periods: int = KLEIN_PERIODS) -> dict[str, float]:
    """Alternating moves, demand 1 - p to the cheaper firm; profits and prices over the last 1,000 periods of greedy
    play.
    """
    grid = np.arange(1, actions + 1) / actions
    own, rival = grid[:, None], grid[None, :]
    share = np.where(own < rival, 1.0, np.where(own == rival, 0.5, 0.0))
    profit = share * own * (1 - own)
    profits = np.stack([profit, profit])
    shape = (sessions, 2, actions)
    q, best, greedy = np.zeros((*shape, actions)), np.zeros(shape), np.zeros(shape, dtype=np.int64)
    word = np.array([stream_seed(seed, "klein", actions) for seed in range(sessions)], dtype=np.uint64)
    count, epsilon = np.full((sessions, 5), -1), np.ones(sessions)
    count[:, 0] = 0
    count[:, 1:3] = np.random.default_rng(stream_seed(0, "klein", "start")).integers(actions, size=(sessions, 2))
    decay = float(1e-6 ** (1 / periods))
    play_in_turn(periods, profits, q, best, greedy, count, word, epsilon, KLEIN_ALPHA, KLEIN_DISCOUNT, decay)
    rows, shown = np.arange(sessions), count[:, 1:3].copy()
    earned, path = np.zeros((1000, sessions)), np.zeros((1000, sessions), dtype=np.int64)
    for t in range(1000):
        mover = (periods + t) % 2
        shown[:, mover] = greedy[rows, mover, shown[:, 1 - mover]]
        earned[t] = (profit[shown[:, 0], shown[:, 1]] + profit[shown[:, 1], shown[:, 0]]) / 2
        path[t] = shown.min(axis=1)
    still = (path[-200:] == path[-1]).all(axis=0)
    per_firm = estimate(earned.mean(axis=0))
    return {
        "prices": actions,
        "profit per firm": per_firm.mean,
        "low": per_firm.low,
        "high": per_firm.high,
        "share at one price": float(still.mean()),
        "share cycling": float((~still).mean()),
        "joint maximum per firm": float(profit.max() / 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--most", type=int, default=5_000_000, help="periods after which a session is taken as it is")
    parser.add_argument("--periods", type=int, default=KLEIN_PERIODS, help="periods of alternating play")
    asked = parser.parse_args()
    for name, firms, settings in (
        ("R7 base", 2, SessionSettings()),
        ("R7 no memory", 2, SessionSettings(memory=0)),
        ("R7 no weight on the future", 2, SessionSettings(discount=0.0)),
        ("R7 three firms (memory: .64)", 3, SessionSettings()),
        ("R10 action only, no future", 2, SessionSettings(discount=0.0, memory=0)),
        ("R10 counterfactual, no future", 2, SessionSettings(discount=0.0, memory=0, counterfactual=True)),
        ("R10 counterfactual, memory, patient", 2, SessionSettings(counterfactual=True)),
    ):
        print(f"{name}: profit gain {estimate(gains(firms, settings, asked.sessions, asked.most))}", flush=True)
    for actions in (6, 12, 24):
        print(f"R8 alternating: {klein(actions, asked.sessions, asked.periods)}", flush=True)


if __name__ == "__main__":
    main()
