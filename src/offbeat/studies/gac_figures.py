"""Figures of study `gac`: the arms at the edge, and the cosines of their gradients. Draws, judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from offbeat.report.style import BLUE, GREEN, GREY, ORANGE, Figure, line, spec, trace
from offbeat.studies.grid import Estimate, Sample
from offbeat.theory.collapse import moving_mean


def arms_figure(finals: Mapping[str, Estimate]) -> Figure:
    """A bar for each arm with its interval."""
    known = {name: (one.value, one.interval) for name, one in finals.items() if one.value is not None and one.interval}
    names, values = list(known), [value for value, _ in known.values()]
    above = [interval.high - value for value, interval in known.values()]
    below = [value - interval.low for value, interval in known.values()]
    bars = trace(
        "bar",
        x=names,
        y=values,
        marker={"color": BLUE},
        error_y={"type": "data", "array": above, "arrayminus": below},
        hovertemplate="%{x}: %{y:.3f}<extra></extra>",
    )
    chart = spec([bars], "", "final exact match", height=340)
    return Figure("arms", "Arms at the edge", "IQM over seeds with 95 % intervals.", chart if names else None, "full")


def cosine_figure(seeds: Sample, rate: float, staleness: int) -> Figure:
    """Lag-1 cosines over steps, mean over seeds."""
    traces = []
    for arm, s, colour in (("sync", 0, GREEN), ("plain", staleness, GREY), ("cap", staleness, BLUE),
                           ("autopilot", staleness, ORANGE)):  # fmt: skip
        curves = [seed[arm, s, rate].values["cosine"] for seed in seeds]
        length = min(len(curve) for curve in curves)
        mean = [fmean(curve[i] or 0.0 for curve in curves) for i in range(length)]
        smooth = moving_mean(mean, 10)
        traces.append(line(list(range(length)), smooth, arm, colour, "%{y:.3f}"))
    chart = spec(traces, "step", "cosine", yaxis_rangemode="normal")
    caption = "Consecutive raw gradients, mean over seeds and of 10 steps; an invalid step counts as 0 here only."
    return Figure("cosines", "Alignment over a run", caption, chart)
