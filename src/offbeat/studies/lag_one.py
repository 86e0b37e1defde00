"""Study `lag-one`: is data one publish old better than fresh data, and is it the clip that makes it so?

On fresh data one update a batch has ratio 1 throughout, so PPO's clip never acts; one publish later it holds back what
the last update has moved already. Arms, each at its best learning rate: sync; S = 1 (`lag one`); S = 1 without the
clip; sync with more momentum, which a delay resembles (arXiv 1605.09774). *Declared*, differences paired by seed, a
difference counts where its 95 % interval lies above 0: the clip explains the lead of `lag one` over sync where `no
clip` ends below `lag one` and not above sync; momentum explains it where `momentum` ends above sync and not below `lag
one`; where both differences count it is a part, where neither does nothing can be said.
"""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

from offbeat.report.style import BLUE, GREEN, GREY, ORANGE, Figure, line, spec
from offbeat.studies.cell import Cell
from offbeat.studies.grid import Estimate, Sample, estimate, rates_at, seeds_of
from offbeat.studies.scales import SMOKE, STEPS, WHOLE
from offbeat.studies.study import Findings, Results, by_seed
from offbeat.theory.fits import interquartile_mean

RATES = (5e-5, 1e-4, 2e-4)
NEVER = {"objective": {"name": "grpo", "clip_low": 1.0, "clip_high": 1e6}}
ARMS: dict[str, tuple[int, dict[str, Any]]] = {
    "sync": (0, {}),
    "lag one": (1, {}),
    "no clip": (1, {"learner": NEVER}),
    "momentum": (0, {"first_beta": 0.95}),
}
"""Staleness and options."""
PAIRS = (
    ("lag one", "sync"),
    ("lag one", "no clip"),
    ("no clip", "sync"),
    ("lag one", "momentum"),
    ("momentum", "sync"),
)
COLOURS = dict(zip(ARMS, (GREEN, BLUE, ORANGE, GREY), strict=True))


class LagOneStudy:
    name = "lag-one"

    def cells(self, seeds: int, smoke: bool) -> list[Cell]:
        steps, scale = (40, SMOKE) if smoke else (STEPS, WHOLE)
        return by_seed(
            [
                Cell(self.name, "train", arm, seed, s, "fixed-lag", rate, steps, scale, options)
                for seed in range(seeds)
                for arm, (s, options) in ARMS.items()
                for rate in (RATES[-1:] if smoke else RATES)
            ]
        )

    def findings(self, results: Results, smoke: bool) -> Findings:
        seeds = seeds_of(results)
        finals = {arm: estimate(seeds, partial(final, arm=arm), f"final {arm}") for arm in ARMS}
        less = {
            (one, other): estimate(seeds, partial(difference, one=one, other=other), f"{one} less {other}")
            for one, other in PAIRS
        }
        values: dict[str, Any] = {
            "final": {arm: one.to_json() for arm, one in finals.items()},
            "best_rate": {arm: best_rate(seeds, arm) for arm in ARMS},
            "difference": {f"{one} less {other}": found.to_json() for (one, other), found in less.items()},
            "rates": [
                {"arm": arm, "eta": rate, "final": interquartile_mean(_finals(seeds, arm, rate)),
                 "cosine": estimate(seeds, partial(cosine, arm=arm, rate=rate), f"cosine {arm} {rate}").to_json()}
                for arm in ARMS for rate in rates_at(seeds, arm, ARMS[arm][0])
            ],
        }  # fmt: skip
        head = ["final exact match", "lag one less this", "best η", "arm"]
        rows = [
            [one.shown(".3f"), less["lag one", arm].shown("+.3f") if ("lag one", arm) in less else "",
             f"{best_rate(seeds, arm):g}", arm]
            for arm, one in finals.items()
        ]  # fmt: skip
        table = ("Arms", "IQM over seeds at each arm's best rate, 95 % intervals; differences paired by seed.",
                 head, rows, 3)  # fmt: skip
        lead = (
            f"Seeds: {len(seeds)}, fixed lag of one publish (one optimizer update) against fresh data. Final: expected"
            " exact match on held-out prompts at the end; each arm at the best of its learning rates."
        )
        figures = [_curves(seeds), _cosines(seeds)]
        return Findings("Data one publish old", lead, values, verdicts(less), figures, [table])


def best_rate(sample: Sample, arm: str) -> float:
    """The rate at which the arm's runs end best."""
    return max(rates_at(sample, arm, ARMS[arm][0]), key=lambda rate: interquartile_mean(_finals(sample, arm, rate)))


def final(sample: Sample, arm: str) -> float:
    """IQM over seeds of the final exact match, at the arm's best rate."""
    return interquartile_mean(_finals(sample, arm, best_rate(sample, arm)))


def difference(sample: Sample, one: str, other: str) -> float:
    """IQM over seeds of what an arm ends above another, each at its own best rate, seed by seed."""
    ours, theirs = (_finals(sample, arm, best_rate(sample, arm)) for arm in (one, other))
    return interquartile_mean([a - b for a, b in zip(ours, theirs, strict=True)])


def cosine(sample: Sample, arm: str, rate: float) -> float:
    """Mean lag-1 cosine of raw gradients. ValueError where no step has one."""
    known = [c for seed in sample if (c := seed[arm, ARMS[arm][0], rate].cosine()) is not None]
    if not known:
        raise ValueError("no cosine")
    return fmean(known)


def verdicts(less: dict[tuple[str, str], Estimate]) -> list[str]:
    """Whether there is a lead, and what explains it, by the declared rule."""
    lead, lost, left = less["lag one", "sync"], less["lag one", "no clip"], less["no clip", "sync"]
    if lead.interval is None or lead.interval.holds(0.0):
        return [f"Whether data one publish old is better than fresh data cannot be said: {lead.shown('+.3f')}."]
    if not lead.is_positive:
        return [f"Data one publish old is worse than fresh data: {lead.shown('+.3f')}."]
    gained, short = less["momentum", "sync"], less["lag one", "momentum"]
    return [
        f"Data one publish old is better than fresh data, each at its best rate: {lead.shown('+.3f')}.",
        f"{_explains('The clip', lost, left)}: without it {lost.shown('+.3f')} is lost and {left.shown('+.3f')} left.",
        f"{_explains('Momentum', gained, short)}: sync gains {gained.shown('+.3f')} by more of it,"
        f" {short.shown('+.3f')} is missing.",
    ]


def _explains(what: str, accounted: Estimate, rest: Estimate) -> str:
    if accounted.is_positive:
        return f"{what} explains a part of it" if rest.is_positive else f"{what} explains it"
    return f"{what} does not explain it" if rest.is_positive else f"Whether {what.lower()} explains it cannot be said"


def _finals(sample: Sample, arm: str, rate: float) -> list[float]:
    return [seed[arm, ARMS[arm][0], rate].final for seed in sample]


def _curves(seeds: Sample) -> Figure:
    traces = []
    for arm, (s, _) in ARMS.items():
        runs = [seed[arm, s, best_rate(seeds, arm)].values["evaluations"] for seed in seeds]
        steps = [step for step, _ in min(runs, key=len)]
        means = [fmean(run[i][1] for run in runs) for i in range(len(steps))]
        traces.append(line(steps, means, arm, COLOURS[arm], "%{y:.3f}", mode="lines+markers"))
    chart = spec(traces, "step", "held-out exact match")
    return Figure("curves", "Learning", "Expected exact match, mean over seeds, each arm at its best rate.", chart)


def _cosines(seeds: Sample) -> Figure:
    traces = []
    for arm, (s, _) in ARMS.items():
        rates = rates_at(seeds, arm, s)
        means = [cosine(seeds, arm, rate) for rate in rates]
        traces.append(line(rates, means, arm, COLOURS[arm], "%{y:+.3f}", mode="lines+markers"))
    chart = spec(traces, "η", "cosine", xaxis_type="log", xaxis_tickvals=rates_at(seeds, "sync", 0))
    return Figure("cosines", "Lag-1 cosines", "Consecutive raw gradients, mean over steps and seeds.", chart)
