"""Study `lag-one`: is data one publish old better than fresh data, and is it the clip that makes it so?

On fresh data one update a batch has ratio 1 throughout, so PPO's clip never acts; one publish later it holds back what
the last update has moved already. Arms, each at the best of two learning rates: sync; S = 1; S = 1 without the clip;
sync with more momentum, which a delay resembles (arXiv 1605.09774). *Declared*: an arm explains the lead of S = 1 over
sync where the 95 % interval of S = 1 less the arm, paired by seed, is above 0 for `no clip` (without it the lead is
gone), or holds 0 for `momentum` (with it sync has the lead as well).
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

RATES = (1e-4, 2e-4)
NEVER = {"objective": {"name": "grpo", "clip_low": 1.0, "clip_high": 1e6}}
ARMS: dict[str, tuple[int, dict[str, Any]]] = {
    "sync": (0, {}),
    "lag one": (1, {}),
    "no clip": (1, {"learner": NEVER}),
    "momentum": (0, {"first_beta": 0.95}),
}
"""Staleness and options."""
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
        ahead = {arm: estimate(seeds, partial(lead_over, arm=arm), f"over {arm}") for arm in ARMS if arm != "lag one"}
        cosines = {arm: estimate(seeds, partial(cosine, arm=arm), f"cosine {arm}") for arm in ARMS}
        values = {
            name: {arm: one.to_json() for arm, one in group.items()}
            for name, group in (("final", finals), ("lag_one_less", ahead), ("cosine", cosines))
        }
        rows = [
            [one.shown(".3f"), ahead[arm].shown("+.3f") if arm in ahead else "", cosines[arm].shown("+.3f"), arm]
            for arm, one in finals.items()
        ]
        table = ("Arms", "IQM over seeds at each arm's best rate, 95 % intervals; differences paired by seed.",
                 ["final exact match", "lag one less this", "lag-1 cosine", "arm"], rows, 3)  # fmt: skip
        lead = (
            f"{len(seeds)} seeds, fixed lag of one publish (one optimizer update) against fresh data. Final: expected"
            " exact match on held-out prompts at the end; each arm at the best of its learning rates."
        )
        return Findings("Data one publish old", lead, values, verdicts(ahead), [_curves(seeds)], [table])


def best_rate(sample: Sample, arm: str) -> float:
    """The rate at which the arm's runs end best."""
    return max(rates_at(sample, arm, ARMS[arm][0]), key=lambda rate: interquartile_mean(_finals(sample, arm, rate)))


def final(sample: Sample, arm: str) -> float:
    """IQM over seeds of the final exact match, at the arm's best rate."""
    return interquartile_mean(_finals(sample, arm, best_rate(sample, arm)))


def lead_over(sample: Sample, arm: str) -> float:
    """IQM over seeds of what `lag one` ends above another arm, each at its own best rate, seed by seed."""
    ours, theirs = (_finals(sample, one, best_rate(sample, one)) for one in ("lag one", arm))
    return interquartile_mean([a - b for a, b in zip(ours, theirs, strict=True)])


def cosine(sample: Sample, arm: str) -> float:
    """Mean lag-1 cosine of raw gradients at the arm's best rate. ValueError where no step has one."""
    rate = best_rate(sample, arm)
    known = [c for seed in sample if (c := seed[arm, ARMS[arm][0], rate].cosine()) is not None]
    if not known:
        raise ValueError("no cosine")
    return fmean(known)


def verdicts(ahead: dict[str, Estimate]) -> list[str]:
    """Whether there is a lead, and what explains it, by the declared rule."""
    lead = ahead["sync"]
    if not lead.is_positive:
        return [f"Data one publish old is not better than fresh data: {lead.shown('+.3f')}."]
    clip, momentum = ahead["no clip"], ahead["momentum"]
    return [
        f"Data one publish old is better than fresh data, each at its best rate: {lead.shown('+.3f')}.",
        f"The clip {'explains' if clip.is_positive else 'does not explain'} it: with the clip less without it"
        f" {clip.shown('+.3f')}.",
        f"Momentum {'does not explain' if momentum.is_positive else 'explains'} it: less sync with more of it"
        f" {momentum.shown('+.3f')}.",
    ]


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
