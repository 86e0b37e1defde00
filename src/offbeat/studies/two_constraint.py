"""Study `two-constraint` (L1, L5, L7 without control): how the largest stable learning rate depends on staleness.

A grid of (S, eta) at fixed lag with a sync control, for each S the rates around its edge. *Declared*: three edges (see
`grid`): by collapse; by half gain, half of sync's best; by break-even, where a run ends no better than it began. The
staleness-limited region is S >= 4, the horizon-limited one 1 <= S <= 2; the law predicts a slope of log eta_max on
log S of -1 in the first and 0 in the second, each held where the value is within 0.25. Every run is 20 times as long as
the largest S: what goes wrong in a delayed loop grows once in S updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from offbeat.report.style import BLUE, GREEN, OCHRE, ORANGE, RED, RED_TO_GREEN, ROUND, VIOLET, Figure, line, spec, trace
from offbeat.studies.cell import Cell
from offbeat.studies.grid import (
    Estimate,
    Sample,
    collapse_edge,
    estimate,
    gain_edge,
    mean_gain,
    rates_at,
    seeds_of,
)
from offbeat.studies.planner_check import Edge, check
from offbeat.studies.scales import SMOKE, WHOLE
from offbeat.studies.study import Findings, Results, by_seed
from offbeat.theory.fits import power_law

COLOURS = (BLUE, ORANGE, GREEN, VIOLET, RED, OCHRE, BLUE)
STALENESS_LIMITED = 4
"""From this S on."""
HORIZON_LIMITED = 2
"""Up to this S, from 1."""
TOLERANCE = 0.25
ARM = "plain"
GRID = {
    0: (1e-4, 2e-4),
    1: (4e-4, 8e-4),
    2: (1e-4, 4e-4, 8e-4),
    4: (2e-4, 4e-4, 8e-4),
    8: (1e-4, 2e-4, 4e-4),
    16: (2.5e-5, 5e-5, 1e-4, 2e-4),
}
"""Learning rates by staleness, around the edges that runs of five seeds and 150 updates, and one seed of 320, had. In
those of 150 S = 32, not five lags long, was safe at higher rates than S = 16, nine lags long."""
FAST = 8e-4
"""From this rate on a run ends once its collapse is settled."""
CYCLES = 20
"""Length of a run, in the largest S."""
SMOKE_GRID = dict.fromkeys((0, 4, 16), (2e-4, 8e-4))
RATES = [m * 10.0**k for k in range(-6, 0) for m in (1, 2, 5)]
"""Ticks of a logarithmic axis of learning rates."""


class TwoConstraintStudy:
    name = "two-constraint"

    def cells(self, seeds: int, smoke: bool) -> list[Cell]:
        scale, steps, grid = (SMOKE, 40, SMOKE_GRID) if smoke else (WHOLE, CYCLES * max(GRID), GRID)
        return by_seed(
            [
                Cell(self.name, "train", ARM, seed, staleness, "fixed-lag", rate, steps, scale, options_at(rate))
                for seed in range(seeds)
                for staleness, rates in grid.items()
                for rate in rates
            ]
        )

    def findings(self, results: Results, smoke: bool) -> Findings:
        seeds = seeds_of(results)
        stalenesses = sorted({cell.staleness for cell, _ in results})
        edges: dict[str, Edge] = {
            "collapse": partial(collapse_edge, arm=ARM),
            "half gain": half_of_sync,
            "break-even": partial(gain_edge, arm=ARM, wanted=0.0),
        }
        values: dict[str, Any] = {"grid": _grid_json(seeds, stalenesses)}
        verdicts, rows = [], []
        by_edge: dict[str, list[tuple[int, float]]] = {}
        for name, edge in edges.items():
            found = {s: estimate(seeds, partial(edge, staleness=s), f"{name} {s}") for s in stalenesses}
            by_edge[name] = [(s, value) for s, one in found.items() if (value := one.value) is not None]
            rows += [[str(s), name, one.shown()] for s, one in found.items()]
            regions = {
                "staleness-limited": ([s for s in stalenesses if s >= STALENESS_LIMITED], -1.0),
                "horizon-limited": ([s for s in stalenesses if 1 <= s <= HORIZON_LIMITED], 0.0),
            }
            key = name.replace(" ", "_").replace("-", "_")
            values[f"eta_max_{key}"] = {str(s): one.to_json() for s, one in found.items()}
            for region, (members, predicted) in regions.items():
                statistic = partial(edge_slope, stalenesses=members, edge=edge)
                slope = estimate(seeds, statistic, f"{name} {region}")
                values[f"slope_{key}_{region.replace('-', '_')}"] = slope.to_json()
                verdicts.append(slope_verdict(f"{name} edge, {region}", slope, predicted))
            values[f"planner_{key}"], verdict = check(seeds, ARM, edge, name)
            verdicts.append(verdict)
        lead = (
            f"Seeds: {len(seeds)}, fixed lag: every batch is exactly S publishes (one optimizer update each) old, S = 0"
            " is the sync control. Edge: the largest learning rate a run survives: by the declared collapse criterion,"
            " by half of sync's best gain on held-out prompts, and where nothing is gained any more."
        )
        table = ("Edges", "Largest stable learning rate with 95 % intervals over seeds.",
                 ["S", "edge", "η_max"], rows, 1)  # fmt: skip
        return Findings(
            "The largest stable learning rate against staleness", lead, values, verdicts,
            [_map(seeds, stalenesses), _edge_figure(by_edge), _gains(seeds, stalenesses)],
            [table],
        )  # fmt: skip


def options_at(rate: float) -> dict[str, Any]:
    """What a cell at this rate is asked to do."""
    return {"until_collapse": True} if rate >= FAST else {}


def best_sync_gain(sample: Sample) -> float:
    """The mean gain of sync at the rate of the grid that is best for it. ValueError where it learns nothing."""
    best = max(mean_gain(sample, ARM, 0, rate) for rate in rates_at(sample, ARM, 0))
    if best <= 0:
        raise ValueError("sync gained nothing")
    return best


def half_of_sync(sample: Sample, *, staleness: int) -> float:
    """The edge by half of sync's best gain."""
    return gain_edge(sample, ARM, staleness, best_sync_gain(sample) / 2)


def edge_slope(sample: Sample, stalenesses: Sequence[int], edge: Edge) -> float:
    """The exponent of eta_max in S over these S whose edge is on the grid. ValueError for fewer than two."""
    points = []
    for s in stalenesses:
        try:
            points.append((s, edge(sample, staleness=s)))
        except ValueError:
            continue
    if len(points) < 2:
        raise ValueError("fewer than two edges are on the grid")
    return power_law([s for s, _ in points], [e for _, e in points]).slope


def slope_verdict(what: str, found: Estimate, predicted: float) -> str:
    """One sentence, by rule."""
    if found.value is None:
        return f"{what}: no slope, for fewer than two of its edges are on the grid."
    word = "as predicted" if abs(found.value - predicted) <= TOLERANCE else "not as predicted"
    return f"{what}: slope {found.shown('.2f')}, {word} ({predicted:g} ± {TOLERANCE})."


def _grid_json(seeds: Sample, stalenesses: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "staleness": s,
            "eta": rate,
            "gain": estimate(seeds, partial(mean_gain, arm=ARM, staleness=s, rate=rate), f"gain {s} {rate}").to_json(),
            "collapsed": sum(seed[ARM, s, rate].collapse_step is not None for seed in seeds),
            "seeds": len(seeds),
        }
        for s in stalenesses
        for rate in rates_at(seeds, ARM, s)
    ]


def _map(seeds: Sample, stalenesses: Sequence[int]) -> Figure:
    run = {(s, rate): mean_gain(seeds, ARM, s, rate) for s in stalenesses for rate in rates_at(seeds, ARM, s)}
    rates = sorted({rate for _, rate in run})
    gains = [[run.get((s, rate)) for s in stalenesses] for rate in rates]

    def word(s: int, rate: float) -> str:
        if (s, rate) not in run:
            return ""
        fell = sum(seed[ARM, s, rate].collapse_step is not None for seed in seeds)
        return f"{run[s, rate]:+.2f}" + (f"<br>{fell} fell" if fell else "")

    words = [[word(s, rate) for s in stalenesses] for rate in rates]
    heat = trace(
        "heatmap", x=[str(s) for s in stalenesses], y=[f"{rate:g}" for rate in rates], z=gains, text=words,
        texttemplate="%{text}", colorscale=RED_TO_GREEN, zmid=0,
        hovertemplate="S %{x}, η %{y}: gain %{z:.3f}<extra></extra>",
    )  # fmt: skip
    chart = spec([heat], "S (publishes)", "η", xaxis_type="category", yaxis_type="category", height=380)
    caption = "Gain in held-out exact match, mean over seeds; below it in how many seeds the run collapsed."
    return Figure("map", "Gain over staleness and learning rate", caption, chart, "full")


def _edge_figure(by_edge: dict[str, list[tuple[int, float]]]) -> Figure:
    traces = [
        line(
            [s for s, _ in points if s],
            [edge for s, edge in points if s],
            name,
            colour,
            "%{y:.3g}",
            mode="lines+markers",
        )
        for (name, points), colour in zip(by_edge.items(), COLOURS, strict=False)
    ]
    anchors = [points for points in by_edge.values() if points and points[-1][0]]
    if anchors:
        s_end, edge_end = anchors[-1][-1]
        s_all = [1, 2, 4, 8, 16]
        law = [edge_end * s_end / s for s in s_all]
        traces.append(line(s_all, law, "1 / S", OCHRE, "%{y:.3g}", line={"dash": "dot", "color": OCHRE, "width": 1}))
    chart = spec(
        traces, "S (publishes)", "η_max", xaxis_type="log", yaxis_type="log", xaxis_tickvals=ROUND, yaxis_tickvals=RATES
    )
    caption = "Both axes logarithmic; a staleness limit falls like the dotted line, a horizon limit is flat."
    return Figure("edges", "The edge", caption, chart if anchors else None)


def _gains(seeds: Sample, stalenesses: Sequence[int]) -> Figure:
    traces = []
    for s, colour in zip((s for s in stalenesses if s > 0), COLOURS, strict=False):
        rates = rates_at(seeds, ARM, s)
        gains = [mean_gain(seeds, ARM, s, rate) for rate in rates]
        traces.append(line([s * rate for rate in rates], gains, f"S {s}", colour, "%{y:+.3f}", mode="lines+markers"))
    chart = spec(traces, "S·η", "gain", xaxis_type="log", yaxis_rangemode="normal", xaxis_tickvals=ROUND)
    return Figure("gains", "Gain over S·η", "If S·η alone decided, the curves would fall at one place.", chart)
