"""Claims R7, R8, R10: controls of tabular Q-learning in the repeated game.

R7: without memory, without patience and with more firms the gain is lower. R8: in alternating moves (Klein, RAND
52(3) 2021) few prices give a fixed collusive price, many give Edgeworth cycles between the competitive cycle's
profit and the joint maximum. R10 (Asker, Fershtman and Pakes): updating every action with what it would have earned
("synchronous" there, `counterfactual` here) competes, updating the chosen action alone ends near monopoly, at no
weight on the future. Their firms never explore but begin with values above any profit, and Calvano et al. (CEPR
DP16393) answer that this is why: so both ways of exploring are played in a market of that kind.

python runs/market_sessions.py --sessions 100
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

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


def settled(played: Sessions) -> str:
    return f"{int(played.converged.sum())} of {len(played.converged)} settled"


def play_out(played: Sessions, most: int) -> None:
    """Until all have settled or played `most` periods."""
    while not played.over and played.count[:, 1].max() < most:
        played.advance()
        print(f"\r{settled(played)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def gains(firms: int, settings: SessionSettings, sessions: int, most: int) -> tuple[np.ndarray, str]:
    """Profit gain of each session on its greedy path, and how many had settled."""
    benchmark = solve(calvano(firms))
    grid = price_grid(float(benchmark.nash.prices[0]), float(benchmark.cartel.prices[0]))
    played = Sessions(PriceGame.on_grid(benchmark.industry, grid), settings, list(range(sessions)))
    play_out(played, most)
    greedy = played.greedy
    if not settings.memory:  # the same action in every state
        greedy = np.repeat(greedy, played.game.actions**firms, axis=2)
    learnt = Strategies(played.game, greedy, played.count[:, 0])
    return profit_gain(benchmark, learnt.mean_profits().T), settled(played)


def cheapest_sells(counterfactual: bool, explores: bool, sessions: int, most: int) -> tuple[np.ndarray, str]:
    """The price buyers pay at the end of each session, and how many had settled. The cheaper of two firms sells to all,
    who pay up to 10, cost 2, prices .1, .2, ..., 10; no memory, no future. Values begin between 10 and 20: more than
    can be earned.
    """
    grid, cost = np.arange(1, 101) / 10, 2.0
    own, rival = grid[:, None], grid[None, :]
    profit = cheaper_share(own, rival) * (own - cost)
    game = PriceGame(grid, np.stack([profit.ravel(), profit.T.ravel()]))
    settings = SessionSettings(alpha=0.1, discount=0.0, memory=0, counterfactual=counterfactual)
    played = Sessions(game, settings, list(range(sessions)))
    for session in range(sessions):
        draw = np.random.default_rng(stream_seed(session, "session", "values"))
        played.q[session] = draw.uniform(10, 20, played.q[session].shape)
    played.best[:], played.greedy[:] = played.q.max(axis=-1), played.q.argmax(axis=-1)
    played.epsilon[:] = float(explores)
    play_out(played, most)
    return grid[played.greedy[:, :, 0]].min(axis=1), settled(played)


def cheaper_share(own: np.ndarray, rival: np.ndarray) -> np.ndarray:
    return np.where(own < rival, 1.0, np.where(own == rival, 0.5, 0.0))


def klein(actions: int, sessions: int, periods: int = KLEIN_PERIODS) -> dict[str, float]:
    """Alternating moves, demand 1 - p to the cheaper firm; profits and prices over the last 1,000 periods of greedy
    play.
    """
    grid = np.arange(1, actions + 1) / actions
    own, rival = grid[:, None], grid[None, :]
    profit = cheaper_share(own, rival) * own * (1 - own)
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


def shown(row: tuple[np.ndarray, str] | dict[str, float]) -> str:
    if isinstance(row, dict):
        return str(row)
    values, how_many = row
    low, median, high = np.percentile(values, [5, 50, 95])
    return f"{estimate(values)}; 5, 50, 95 %: {low:.2f}, {median:.2f}, {high:.2f}; {how_many}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--most", type=int, default=5_000_000, help="periods after which a session is taken as it is")
    parser.add_argument("--periods", type=int, default=KLEIN_PERIODS, help="periods of alternating play")
    parser.add_argument("--only", default="", help="rows whose names begin so")
    asked = parser.parse_args()
    rows: dict[str, Callable[[], Any]] = {
        name: partial(gains, firms, settings, asked.sessions, asked.most)
        for name, firms, settings in (
            ("R7 base", 2, SessionSettings()),
            ("R7 no memory", 2, SessionSettings(memory=0)),
            ("R7 no weight on the future", 2, SessionSettings(discount=0.0)),
            ("R7 three firms (memory: .64)", 3, SessionSettings()),
            ("R10 action only, no future", 2, SessionSettings(discount=0.0, memory=0)),
            ("R10 counterfactual, no future", 2, SessionSettings(discount=0.0, memory=0, counterfactual=True)),
            ("R10 counterfactual, memory, patient", 2, SessionSettings(counterfactual=True)),
        )
    }
    for counterfactual, learns in ((False, "the chosen action"), (True, "every action")):
        for explores, how in ((False, "by its values alone"), (True, "at random, ever less")):
            name = f"R10 cheapest sells, learns of {learns}, explores {how}"
            rows[name] = partial(cheapest_sells, counterfactual, explores, asked.sessions, asked.most)
    for actions in (6, 12, 24):
        rows[f"R8 {actions} prices, alternating"] = partial(klein, actions, asked.sessions, asked.periods)
    for name, row in rows.items():
        if name.startswith(asked.only):
            print(f"{name}: {shown(row())}", flush=True)


if __name__ == "__main__":
    main()
