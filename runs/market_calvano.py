"""Claim (R5, R6): Q-learning in the repeated logit duopoly ends at a profit gain of .849 (SD .112) and punishes
deviations.

Calvano et al., AER 110(10) 2020, representative experiment: 15 prices, memory 1, alpha .15, beta 4e-6, delta .95,
sessions to convergence. Can be interrupted: the same directory goes on. Published figures stand beside ours, with a
bootstrap interval.

python runs/market_calvano.py --sessions 200 --out out/calvano
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from offbeat.eventtime.streams import stream_seed
from offbeat.market.equilibrium import solve
from offbeat.market.gain import profit_gain
from offbeat.market.industry import calvano
from offbeat.market.learners.sessions import PriceGame, Sessions, SessionSettings, price_grid
from offbeat.market.learners.strategies import Strategies

PUBLISHED = {
    "delta": 0.849,
    "delta_sd": 0.112,
    "constant symmetric": 0.277,
    "constant asymmetric": 0.366,
    "2-cycle": 0.238,
}
PUBLISHED |= {"longer cycle": 0.119, "equilibrium_on_path": 0.505, "mean_loss_on_path": 0.002, "mean_loss": 0.018}
RESPONSE = {
    "deviator": (1.7913, 1.5046, 1.5588, 1.5782, 1.6383, 1.6923, 1.7323, 1.7611, 1.7759, 1.7842, 1.7884),
    "rival": (1.7913, 1.7913, 1.5475, 1.5888, 1.6347, 1.6910, 1.7337, 1.7621, 1.7762, 1.7818, 1.7890),
}
"""Mean prices by period from the one before the deviation on (1,000 sessions)."""


def interval(values: np.ndarray, draws: int = 10_000) -> list[float]:
    """95 % bootstrap interval of the mean."""
    rng = np.random.default_rng(stream_seed(0, "bootstrap"))
    means = values[rng.integers(len(values), size=(draws, len(values)))].mean(axis=1)
    return [float(x) for x in np.quantile(means, [0.025, 0.975])]


def play(
    out: Path, firms: int, settings: SessionSettings, seeds: list[int], every: float = 20.0
) -> tuple[Sessions, float]:
    """Sessions to their end, saved every `every` seconds; seconds of play over all sittings."""
    benchmark = solve(calvano(firms))
    grid = price_grid(float(benchmark.nash.prices[0]), float(benchmark.cartel.prices[0]))
    sessions = Sessions(PriceGame.on_grid(benchmark.industry, grid), settings, seeds)
    out.mkdir(parents=True, exist_ok=True)
    file, clock = out / "sessions.npz", out / "seconds.txt"
    spent = 0.0
    if file.exists():
        sessions.load(file)
        spent = float(clock.read_text())
    began = saved = time.perf_counter()

    def keep() -> None:
        sessions.save(file)
        clock.write_text(f"{spent + time.perf_counter() - began:.3f}")

    def said(over: int, periods: int) -> None:
        nonlocal saved
        print(f"\r{over} of {len(seeds)} sessions converged, {periods:,} periods", end="", file=sys.stderr, flush=True)
        if time.perf_counter() - saved > every:
            keep()
            saved = time.perf_counter()

    sessions.play_out(said)
    keep()
    print(file=sys.stderr)
    return sessions, spent + time.perf_counter() - began


def measure(sessions: Sessions, firms: int) -> dict[str, object]:
    """Everything Calvano et al. report of the representative experiment, for these sessions."""
    benchmark = solve(calvano(firms))
    learnt = Strategies(sessions.game, sessions.greedy, sessions.count[:, 0])
    delta = profit_gain(benchmark, learnt.mean_profits().T)
    found: dict[str, object] = {
        "sessions": len(sessions.seeds),
        "converged": int(sessions.converged.sum()),
        "mean_periods": float(sessions.count[:, 1].mean()),
        "delta": float(delta.mean()),
        "delta_interval": interval(delta),
        "delta_sd": float(delta.std(ddof=1)),
    }
    shapes = Counter(learnt.shapes())
    found |= {
        name: shapes[name] / len(delta)
        for name in ("constant symmetric", "constant asymmetric", "2-cycle", "longer cycle")
    }
    discount = sessions.settings.discount
    loss, cycles = learnt.losses(discount), learnt.cycles()
    found["equilibrium_on_path"] = float(learnt.equilibrium_on_path(discount).mean())
    found["mean_loss_on_path"] = float(np.mean([loss[k][:, cycle].mean() for k, cycle in enumerate(cycles)]))
    found["mean_loss"] = float(loss.mean())
    nash = int(np.abs(sessions.game.prices - benchmark.nash.prices[0]).argmin())
    for name, deviation in (
        ("static best reply", None),
        ("grid price nearest Nash", nash),
        ("grid price above Nash", nash + 1),
    ):
        response = learnt.response(15, deviation)
        paths = {"deviator": response.deviator.mean(axis=0), "rival": response.rivals.mean(axis=0)}
        apart = {who: float(np.abs(paths[who][: len(known)] - known).max()) for who, known in RESPONSE.items()}
        found[f"response to {name}"] = {
            **{who: path.round(4).tolist() for who, path in paths.items()},
            "furthest_from_published": apart,
            "net_gain": float(response.net_gain(discount).mean()),
            "share_unprofitable": float((response.net_gain(discount) < 0).mean()),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--firms", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/calvano"))
    parser.add_argument("--memory", type=int, default=1)
    parser.add_argument("--discount", type=float, default=0.95)
    parser.add_argument("--beta", type=float, default=4e-6)
    asked = parser.parse_args()
    settings = SessionSettings(beta=asked.beta, memory=asked.memory, discount=asked.discount)
    sessions, seconds = play(asked.out, asked.firms, settings, list(range(asked.sessions)))
    found = {"seconds": seconds} | (measure(sessions, asked.firms) if asked.memory else {})
    print(json.dumps({"found": found, "published": PUBLISHED | RESPONSE}, indent=1))


if __name__ == "__main__":
    main()
