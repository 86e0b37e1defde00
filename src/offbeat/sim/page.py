"""A simulation as one self-contained HTML page: table, timelines of all schedules, staleness, sweep.

Timelines are aggregates, so thousands of lanes read like four; drag in a figure to zoom. Only puts figures together.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from offbeat.report.page import document, section, write_page
from offbeat.report.sections import card
from offbeat.report.sections import table as html_table
from offbeat.report.style import BLUE, GREEN, GREY, OCHRE, ORANGE, RED, VIOLET, Clock, Figure, Trace, line, spec, trace
from offbeat.sim.cluster import Cluster
from offbeat.sim.simulate import Simulated
from offbeat.sim.sweep import Point, best
from offbeat.sim.table import ROWS, shown
from offbeat.sim.timeline import OLDEST, Timeline

STALENESS = (BLUE, GREEN, OCHRE, ORANGE, RED)
AGES = ("newest version", "1 version old", *(f"{age} versions old" for age in range(2, OLDEST)), f"{OLDEST} or more")
COLOURS = (BLUE, GREY, ORANGE, VIOLET, GREEN, RED)


def write_simulation(page: Path, cluster: Cluster, done: Sequence[Simulated], points: Sequence[Point]) -> None:
    """Write the page. Raises RunDirectoryError where it cannot be written."""
    write_page(page, html(cluster, done, points))


def html(cluster: Cluster, done: Sequence[Simulated], points: Sequence[Point]) -> str:
    first = done[0]
    rate = first.result["trajectories_per_second"]
    title = f"{first.schedule} trains on {rate:,.1f} trajectories a second"
    s = cluster.schedule
    lead = (
        f"{cluster.accelerators:,} simulated accelerators in lanes of {cluster.lane_accelerators}, batches of"
        f" {s.train_batch_size:,}, K = {s.max_staleness}; the scheduler is that of a live run."
        f" {sum(one.events for one in done):,} events."
    )
    head = (
        f'<header><div class="eyebrow"><span>offbeat simulation</span><strong>{escape(cluster.name)}</strong></div>'
        f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>'
    )
    parts = [head, section("Side by side", _table(done) + card(_staleness(done)))]
    drawn = [one for one in done if one.timeline is not None and one.timeline.samples]
    parts.append(section("Who ran what when", "".join(_timelines(one) for one in drawn)))
    if points:
        parts.append(section("Sweep", card(_sweep(points))))
    return document(escape(cluster.name), "".join(parts), f"Averages leave out {cluster.run.warmup} iterations.")


def _table(done: Sequence[Simulated]) -> str:
    rates = [one.result["trajectories_per_second"] for one in done]
    rows = [("first ÷ this", *("" if i == 0 else f"{rates[0] / rate:.2f}" for i, rate in enumerate(rates)))]
    rows += [(heading, *(shown(one.result[name], form) for one in done)) for heading, name, form in ROWS]
    body = html_table(["", *(one.schedule for one in done)], rows)
    body = body.replace('class="scroll"', 'class="scroll" style="max-height: none"', 1)
    return f'<section class="card full"><h3>Schedules</h3>{body}</section>'


def _staleness(done: Sequence[Simulated]) -> Figure:
    traces = []
    for i, one in enumerate(done):
        histogram: Any = one.result["staleness_histogram"]
        traces.append(
            trace(
                "bar", x=[int(s) for s in histogram], y=list(histogram.values()), name=one.schedule,
                marker={"color": COLOURS[i % len(COLOURS)]}, hovertemplate="%{y:.1%}",
            )
        )  # fmt: skip
    chart = spec(traces, "staleness in publishes", "share of trajectories", xaxis_dtick=1)
    return Figure("staleness", "Staleness of what was trained on", "Trainer's version less the sampler's.", chart)


def _timelines(one: Simulated) -> str:
    timeline = one.timeline
    assert timeline is not None
    clock = Clock.for_run(timeline.samples[-1].at)
    return card(_slots(one.schedule, timeline, clock)) + card(_lanes(one.schedule, timeline, clock))


def _slots(name: str, timeline: Timeline, clock: Clock) -> Figure:
    """Share of all slots by staleness of what they run, the learner above."""
    x = [sample.at / clock.seconds for sample in timeline.samples]
    traces: list[Trace] = []
    for stale in range(OLDEST + 1):
        y = [sample.shares[stale] for sample in timeline.samples]
        if not any(y):
            continue
        label = AGES[stale]
        colour = STALENESS[stale]
        area = {"stackgroup": "slots", "line": {"width": 0, "color": colour}, "fillcolor": colour}
        traces.append(line(x, y, label, colour, label + ": %{y:.1%}", **area))
    top = max(sum(sample.shares) for sample in timeline.samples) * 1.08
    busy_x: list[float | None] = []
    busy_y: list[float | None] = []
    for began, ended, _ in timeline.training:
        busy_x += [began / clock.seconds, ended / clock.seconds, None]
        busy_y += [top, top, None]
    traces.append(
        trace(
            "scatter", x=busy_x, y=busy_y, mode="lines", name="learner trains", line={"color": GREY, "width": 6},
                   hoverinfo="skip")
    )  # fmt: skip
    chart = spec(traces, clock.axis, "share of slots", yaxis_tickformat=".0%")
    caption = "Slots by the age of what they decode, against the newest version; above, when the learner trained."
    return Figure(f"slots-{name}", f"{name}: slots and learner", caption, chart, size="full")


def _lanes(name: str, timeline: Timeline, clock: Clock) -> Figure:
    """One row for each of some lanes, coloured by the age of the oldest response it runs."""
    rows = [[sample.oldest[row] for sample in timeline.samples] for row in range(len(timeline.lanes))]
    full = [[sample.full[row] for sample in timeline.samples] for row in range(len(timeline.lanes))]
    step = 1 / (OLDEST + 1)
    colours = [[edge, colour] for i, colour in enumerate(STALENESS) for edge in (i * step, (i + 1) * step)]
    heat = trace(
        "heatmap",
        x=[sample.at / clock.seconds for sample in timeline.samples], y=[f"lane {lane}" for lane in timeline.lanes],
        z=rows, customdata=full, colorscale=colours, zmin=-0.5, zmax=OLDEST + 0.5, hoverongaps=False,
        colorbar={"title": {"text": "age"}, "tickvals": list(range(OLDEST + 1)), "thickness": 10},
        hovertemplate="%{y}: oldest is %{z} versions old, %{customdata:.0%} full<extra></extra>",
    )  # fmt: skip
    total = len(timeline.world.lanes)
    shown = f"All {total} lanes" if total == len(timeline.lanes) else f"{len(timeline.lanes)} of {total:,} lanes"
    chart = spec([heat], clock.axis, "", height=420, hovermode="closest", showlegend=False)
    caption = f"{shown}; a gap is an idle lane. Drag to zoom, double-click to see all again."
    return Figure(f"lanes-{name}", f"{name}: lanes", caption, chart, size="full")


def _sweep(points: Sequence[Point]) -> Figure:
    """Trajectories a second along the first key, one line for each combination of the others."""
    chosen, why = best(points)
    first, *others = points[0].values
    lines: dict[tuple[Any, ...], list[Point]] = {}
    for point in points:
        lines.setdefault(tuple(point.values[key] for key in others), []).append(point)
    traces: list[Trace] = []
    for i, (values, along) in enumerate(lines.items()):
        label = ", ".join(f"{k.rpartition('.')[2]} {v}" for k, v in zip(others, values, strict=True)) or first
        x = [point.values[first] for point in along]
        y = [point.result["trajectories_per_second"] for point in along]
        hover = f"{label}, {first} %{{x}}: %{{y:.2f}} trajectories/s"
        traces.append(line(x, y, label, COLOURS[i % len(COLOURS)], hover, mode="lines+markers"))
    traces.append(
        trace(
            "scatter",
            x=[chosen.values[first]], y=[chosen.result["trajectories_per_second"]], mode="markers", name="best",
            marker={"symbol": "circle-open", "size": 16, "color": RED, "line": {"width": 2}}, hoverinfo="skip",
        )
    )  # fmt: skip
    chart = spec(traces, first, "trajectories/s", height=360, hovermode="closest")
    settings = ", ".join(f"{key} = {value}" for key, value in chosen.values.items())
    return Figure("sweep", f"Best: {settings}", why[0].upper() + why[1:] + ".", chart, size="full")
