"""The answer of `offbeat plan` as one self-contained page: the map over staleness and learning rate, and the numbers.

Only draws what the plan holds.
"""

from __future__ import annotations

import math
from html import escape

from offbeat.report.page import document, section
from offbeat.report.read import Run
from offbeat.report.sections import card, table
from offbeat.report.style import GREY, RED, RED_TO_GREEN, ROUND, Figure, line, spec, trace
from offbeat.theory.planner import Plan, margins, plan

OCTAVES = 4
"""The map reaches so many doublings beyond the rates it has to show."""
PER_OCTAVE = 4
RATES = [m * 10.0**k for k in range(-8, 0) for m in (1, 2, 5)]
"""Ticks of the axis of learning rates."""
MARGIN_TICKS = ["1/16", "1/4", "1", "4", "16"]


def html(run: Run, answer: Plan) -> str:
    """The whole page as text."""
    words = sentence(answer)
    head = (
        f'<header><div class="eyebrow"><span>offbeat plan</span>'
        f"<strong>{escape(run.directory.resolve().name)}</strong></div><h1>η_max = {answer.eta_max:.3g}</h1>"
        f'<p class="lead">{escape(words)}</p></header>'
    )
    body = section("The map", card(_map(run, answer))) + section("Estimates", _numbers(answer))
    return document("plan", head + body, "Definitions and what is a guess: docs/stability.md.")


def sentence(answer: Plan) -> str:
    """The answer in words."""
    side = "staleness limit R_batch / (S·G_upd)" if answer.binding == "staleness" else "horizon limit"
    verdict = "inside" if answer.margin >= 1 else "beyond"
    words = (
        f"At S = {answer.staleness} publishes over {answer.steps} steps the {side} binds: η_max = {answer.eta_max:.3g},"
        f" 95 % interval {_interval(answer.interval)}. The run's own rate {answer.estimates.eta:.3g} is {verdict} it"
        f" (margin {answer.margin:.2g})."
    )
    if not answer.estimates.r_crit_seen:
        words += (
            " The pilot did not collapse, so the horizon is only known to be no nearer than"
            f" η = {answer.limit.horizon_limit:.3g}."
        )
    return words


def _interval(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.3g} to {interval[1]:.3g}" if math.isfinite(interval[1]) else f"from {interval[0]:.3g}"


def _map(run: Run, answer: Plan) -> Figure:
    found, own = answer.estimates, run.settings.schedule.staleness_bound
    most = max(32, 2 * answer.staleness, 2 * own)
    stalenesses = sorted({round(2 ** (i / PER_OCTAVE)) for i in range(math.ceil(PER_OCTAVE * math.log2(most)) + 1)})
    edges = [plan(found, s, answer.steps).eta_max for s in stalenesses]
    low, high = min(*edges, found.eta) / OCTAVES, max(*edges, found.eta) * OCTAVES
    count = math.ceil(PER_OCTAVE * math.log2(high / low)) + 1
    etas = [low * 2 ** (i / PER_OCTAVE) for i in range(count)]
    field = [[math.log2(m) for m in row] for row in margins(found, stalenesses, etas, answer.steps)]
    heat = trace(
        "heatmap", x=stalenesses, y=etas, z=field, zmid=0, zmin=-4, zmax=4, colorscale=RED_TO_GREEN, opacity=0.75,
        colorbar={"title": {"text": "margin"}, "tickvals": [-4, -2, 0, 2, 4], "ticktext": MARGIN_TICKS},
        hovertemplate="S %{x}, η %{y:.3g}<extra></extra>", name="margin",
    )  # fmt: skip
    edge = line(stalenesses, edges, "η_max", GREY, "η_max %{y:.3g}")
    marker = {"color": RED, "size": 11, "symbol": "x"}
    here = line([max(own, 1)], [found.eta], "this run", RED, "this run, η %{y:.3g}", mode="markers", marker=marker)
    chart = spec(
        [heat, edge, here],
        "S (publishes)",
        "η",
        xaxis_type="log",
        yaxis_type="log",
        yaxis_tickvals=RATES,
        xaxis_tickvals=ROUND,
        height=440,
        hovermode="closest",
    )
    caption = (
        f"Predicted margin η_max / η of runs of {answer.steps} steps: green would survive, red would not. Both axes are"
        " logarithmic; the edge falls as 1 / S where staleness binds and is flat where the horizon does."
    )
    return Figure("map", "What a run would survive", caption, chart, "full")


def _numbers(answer: Plan) -> str:
    found = answer.estimates
    seen = "drift at the collapse" if found.r_crit_seen else "at least: no collapse was seen"
    rows = [
        [f"{found.g_upd:.4g}", _interval(found.g_upd_interval), "G_upd", "update norm at rate 1, median over steps"],
        [
            f"{found.r_batch:.4g}",
            _interval(found.r_batch_interval),
            "R_batch",
            "distance at which a typical token clips",
        ],
        [f"{found.r_crit:.4g}", _interval(found.r_crit_interval), "R_crit", seen],
        [f"{found.reach.exponent:.2f}", "", "drift exponent", "1 ballistic, 0.5 diffusive"],
        [_limit(answer.limit.staleness_limit), "", "staleness limit", "R_batch / (S·G_upd)"],
        [_limit(answer.limit.horizon_limit), "", "horizon limit", "R_crit / (reach(T)·G_upd)"],
        [str(found.steps), "", "pilot steps", ""],
    ]
    return f'<section class="card full">{table(["value", "95 % interval", "", ""], rows, numbers=2)}</section>'


def _limit(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "none"
