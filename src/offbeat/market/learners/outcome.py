"""What a run or sweep shows, cell by cell: gains with and without diverged runs, the theory's line, the deviation test.

*No gain without its null values, no "collusion" without a punished deviation.* Reads a run's directory only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from offbeat.errors import SettingsError
from offbeat.market.diagnostics.deviation import Deviation, Response, Verdict, force, judge
from offbeat.market.diagnostics.divergence import Told, tell
from offbeat.market.estimate import Estimate, estimate
from offbeat.market.frontier import critical_discount, reaction_discount
from offbeat.market.gain import null_gains, price_index, profit_gain
from offbeat.market.learners.policies import load_policies
from offbeat.market.learners.runfile import MarketRun
from offbeat.market.repricing import RepricingGame, markov_perfect

REPEATS = 4
"""Markets in which each trained run is tested."""
POINTS = 31
"""Prices of the box on which repricing equilibria are solved."""
BEFORE, WATCHED = 30.0, 30.0
"""Units of time before a forced deviation, and after it."""


@dataclass(frozen=True)
class Cell:
    """`quiet`, `noisy`: profit gain of noise-free policies after training, and during it (last tenth of windows);
    `repriced`: the gain of a Markov-perfect equilibrium without latency, in which firms answer present prices
    alone; None where firms do not reprice one at a time, are not two, or no equilibrium is certified on the grid.
    `peak`: largest |Q| of a run's agents as a share of what a value can be (`critic_bound`).
    `discount`: what a unit of profit is worth when a rival first reacts; `sustained`: whether grim trigger can hold the
    cartel price there; `response`, `verdict`: forced deviation of firm 0 in the runs that did not diverge.
    """

    rate: float
    latency: float
    quiet: Told
    noisy: Told
    index: Estimate
    peak: Estimate
    repriced: float | None
    discount: float
    sustained: bool
    response: Response | None
    verdict: Verdict | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        told = {
            name: {"all": part.everyone.as_dict(), "without_diverged": part.kept.as_dict()}
            for name, part in (("quiet_gain", self.quiet), ("on_policy_gain", self.noisy))
        }
        tested = (
            {}
            if self.response is None or self.verdict is None
            else {
                "verdict": self.verdict.word,
                "reasons": list(self.verdict.reasons),
                "punishment_depth": self.response.depth.as_dict(),
                "net_gain_of_deviating": self.response.net_gain.as_dict(),
            }
        )
        return (
            {"rate": self.rate, "latency": self.latency}
            | told
            | {"price_index": self.index.as_dict(), "diverged": self.quiet.diverged}
            | {"critic_peak": self.peak.as_dict()}
            | {"markov_perfect_gain": self.repriced}
            | {"reaction_discount": self.discount, "grim_trigger_sustains": self.sustained}
            | tested
        )


def outcome(run: MarketRun, said: Callable[[str], None]) -> list[Cell]:
    """Every cell of a run; deviation tests once a window is done, for two firms or more."""
    rho = run.study.market.rho
    critical = float(np.nanmax(critical_discount(run.benchmark)))
    slowest = min(run.study.market.speeds_of(run.benchmark.industry.firms))
    periodic = run.study.market.clock in ("common", "alternating")
    quiet, noisy, diverged, peak = run.gains(), run.gains(False), run.diverged, run.critic_peaks
    last = max(1, round(0.1 * run.study.run.windows))
    index = price_index(run.benchmark, run.trace["quiet_price"][-last:].mean(axis=0)) if run.done else quiet
    ends = {rate: _repriced(run, rate) for rate in run.study.market.rates}
    found = []
    for cell, (rate, latency) in enumerate(run.study.cells):
        mine = run.cell == cell
        said(f"testing rate {rate:g}, latency {latency:g}")
        response, verdict = _deviate(run, cell, np.flatnonzero(mine & ~diverged))
        discount = float(reaction_discount(rate * slowest, latency, rho, periodic))
        found.append(
            Cell(
                rate,
                latency,
                tell(quiet[mine], diverged[mine]),
                tell(noisy[mine], diverged[mine]),
                estimate(index[mine]),
                estimate(peak[mine]),
                ends[rate],
                discount,
                discount >= critical,
                response,
                verdict,
            )
        )
    return found


def _repriced(run: MarketRun, rate: float) -> float | None:
    market, firms = run.study.market, run.benchmark.industry.firms
    if firms != 2 or market.clock not in ("poisson", "alternating"):
        return None
    industry, prices = run.benchmark.industry, np.linspace(*run.box, POINTS)
    one, other = market.speeds_of(firms)
    game = (
        RepricingGame.alternating(industry, prices, rate, market.rho)
        if market.clock == "alternating"
        else RepricingGame.poisson(industry, prices, (rate * one, rate * other), market.rho)
    )
    try:
        gain = float(profit_gain(run.benchmark, markov_perfect(game).mean_profits[:, None])[0])
    except SettingsError:  # not certified on this grid
        return None
    return gain if np.isfinite(gain) else None


def _deviate(run: MarketRun, cell: int, kept: np.ndarray) -> tuple[Response | None, Verdict | None]:
    firms = run.benchmark.industry.firms
    if firms < 2 or not run.done or not len(kept):
        return None, None
    units = np.repeat(kept, REPEATS)  # a training is one independent unit, in however many markets it is tested
    policy = load_policies(run.directory).policy(units)
    scenario = run.study.scenario(cell, run.benchmark, BEFORE + WATCHED)
    cut = Deviation(firm=0, at=BEFORE, watched=WATCHED)
    response = force(scenario, run.benchmark, [policy] * firms, cut, len(units), run.study.run.seed, units=units)
    scale = float((run.benchmark.cartel.prices - run.benchmark.nash.prices).mean())
    return response, judge(response, scale)


def told(run: MarketRun, cells: list[Cell]) -> dict[str, Any]:
    """The outcome as one JSON object."""
    return {
        "kind": run.kind,
        "status": run.status,
        "algorithm": run.study.learner.algorithm,
        "windows_done": run.done,
        "windows": run.study.run.windows,
        "seconds": run.seconds,
        "processor_seconds": run.processor_seconds,
        "runs": len(run.study.runs),
        "box": list(run.box),
        "null_gains": null_gains(run.benchmark, run.box).as_dict(),
        "cells": [cell.as_dict() for cell in cells],
    }
