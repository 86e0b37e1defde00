"""The report page of `market run` and `market sweep`: phase diagram, gains over training, critics, deviations."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from offbeat.commands.market_figures import critic_figure, deviation_figures, phase_figure
from offbeat.commands.market_page import FOOTER, header, null_section, written
from offbeat.market.diagnostics.divergence import ExclusionRule
from offbeat.market.estimate import estimate
from offbeat.market.gain import null_gains, profit_gain
from offbeat.report.page import section
from offbeat.report.sections import card, table
from offbeat.report.style import BLUE, GREEN, GREY, OCHRE, ORANGE, RED, VIOLET, Figure, line, spec

if TYPE_CHECKING:
    from offbeat.market.learners.outcome import Cell
    from offbeat.market.learners.runfile import MarketRun

COLOURS = (BLUE, ORANGE, GREEN, VIOLET, RED, OCHRE)
SHOWN = 6
"""Cells drawn one by one; of more, these are the first, the last and some between."""


def run_page(out: Path, run: MarketRun, cells: list[Cell]) -> Path:
    """Write the page of a run or sweep as far as it is; returns where it is."""
    algorithm = run.study.learner.algorithm
    title = f"{algorithm}: {len(cells)} cell(s), {run.study.run.seeds} seeds, {run.study.run.events:,} repricings a run"
    words = [f"{run.done} of {run.study.run.windows} windows trained ({run.status})."]
    words += [_sentence(cell) for cell in cells if cell.verdict is not None]
    parts = [header(f"offbeat market {run.kind}", run.directory.name, title, words)]
    parts.append(null_section(null_gains(run.benchmark, run.box)))
    if run.kind == "sweep":
        parts.append(section("Phase diagram", card(_phase(run, cells))))
    parts.append(section("Cells", _cells(run, cells)))
    chosen = sorted({round(k) for k in np.linspace(0, len(cells) - 1, min(SHOWN, len(cells)))})
    if run.done:
        parts.append(section("Training", card(_training(run, cells, chosen))))
        critics = [f for k in chosen if (f := _critic(run, k)) is not None]
        if critics:
            parts.append(section("Critics", "".join(map(card, critics))))
        figures = [
            figure
            for k in chosen
            if (response := cells[k].response) is not None
            for figure in deviation_figures(response, f"cell-{k}", _name(cells[k]) + ": rivals")
        ]
        if figures:
            parts.append(section("Forced deviations", "".join(map(card, figures))))
    return written(out, f"market {run.kind}", parts, FOOTER + " Settings: " + run.study.model_dump_json())


def _name(cell: Cell) -> str:
    return f"rate {cell.rate:g}, latency {cell.latency:g}"


def _sentence(cell: Cell) -> str:
    assert cell.verdict is not None
    return f"{_name(cell)}: {cell.verdict.word} ({'; '.join(cell.verdict.reasons)})."


def _phase(run: MarketRun, cells: list[Cell]) -> Figure:
    rates, lags = run.study.market.rates, run.study.market.latencies
    grid = [cells[i * len(lags) : (i + 1) * len(lags)] for i in range(len(rates))]
    return phase_figure(
        rates,
        lags,
        [[cell.quiet.kept for cell in row] for row in grid],
        [[cell.quiet.diverged for cell in row] for row in grid],
        [[cell.sustained for cell in row] for row in grid],
    )


def _cells(run: MarketRun, cells: list[Cell]) -> str:
    head = [
        "noise-free",
        "without diverged",
        "on-policy",
        "price index",
        "Markov-perfect",
        "|Q| / bound",
        "diverged",
        "D",
        "verdict",
        "cell",
    ]
    rows = [
        [
            str(cell.quiet.everyone),
            str(cell.quiet.kept),
            str(cell.noisy.everyone),
            str(cell.index),
            "not defined" if cell.repriced is None else f"{cell.repriced:.3f}",
            "no bound" if bound is None else str(cell.peak),
            str(cell.quiet.diverged),
            f"{cell.discount:.3f}",
            "not tested" if cell.verdict is None else cell.verdict.word,
            _name(cell),
        ]
        for cell, bound in zip(cells, run.bounds, strict=True)
    ]
    words = (
        "Profit gain: mean and 95 % interval over seeds, last tenth of the windows. Markov-perfect: the gain "
        "of an equilibrium in which two firms that reprice one at a time answer present prices alone, without latency. "
        "|Q| / bound: the critic's largest value over what a true one can be. "
        "D: discount at a rival's first reaction; the word is what the forced deviation supports."
    )
    return f'<section class="card full"><p class="caption">{escape(words)}</p>{table(head, rows, numbers=8)}</section>'


def _training(run: MarketRun, cells: list[Cell], chosen: list[int]) -> Figure:
    windows = list(range(1, run.done + 1))
    traces = []
    for colour, cell in zip(COLOURS, chosen, strict=False):
        for name, values, dash in (("noise-free", "quiet_profit", "solid"), ("on-policy", "profit", "dot")):
            gains = profit_gain(run.benchmark, np.moveaxis(run.trace[values][..., run.cell == cell], 0, 1))
            mean = [estimate(row).mean for row in gains]
            label = f"{_name(cells[cell])}, {name}"
            traces.append(line(windows, mean, label, colour, "%{y:.3f} " + label, line={"color": colour, "dash": dash}))
    for name, value in null_gains(run.benchmark, run.box).as_dict().items():
        if name in ("midpoint", "random"):
            traces.append(line([windows[0], windows[-1]], [value, value], name, GREY, name, line={"dash": "dot"}))
    chart = spec(traces, "window", "profit gain", yaxis_rangemode="normal")
    return Figure("training", "Profit gain over training", "Mean over seeds; dotted: with exploration.", chart, "full")


def _critic(run: MarketRun, cell: int) -> Figure | None:
    bound = run.bounds[cell]
    if bound is None:
        return None
    largest = np.nanmax(run.trace["critic_max"][..., run.cell == cell], axis=1)
    steps = list(range(1, run.done + 1))
    rate, latency = run.study.cells[cell]
    caption = (
        f"Largest |Q| of a run in a window. True values stay below {bound:.4g} under the learner's own discounting."
    )
    figure = critic_figure(steps, largest, bound, ExclusionRule(bound).margin)
    return Figure(f"critic-{cell}", f"Critic, rate {rate:g}, latency {latency:g}", caption, figure.spec, figure.size)
