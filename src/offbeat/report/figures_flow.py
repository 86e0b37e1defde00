"""What was trained on, as figures: staleness and response lengths."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np

from offbeat.report.laws import promised
from offbeat.report.read import Run
from offbeat.report.story import Story
from offbeat.report.style import BLUE, GREY, RED, ROUND, Figure, spec, trace


def staleness_figure(run: Run, story: Story) -> Figure:
    """Histogram of staleness at consumption, the bound marked where it is promised."""
    schedule = run.settings.schedule
    bound = schedule.staleness_bound if "c3" in promised(schedule.name) else None
    title = "Staleness of what was trained on"
    caption = "How many publishes lay between sampling a trajectory's first token and training on it;" + (
        f" nothing may lie beyond the bound K = {bound}." if bound is not None else f" {schedule.name} has no bound."
    )
    stale = story.staleness
    if not stale:
        return Figure("staleness", title, caption, None)
    counts = Counter(stale)
    x = list(range(min(0, *counts), max(bound or 0, *counts) + 1))
    shares = [counts[s] / len(stale) for s in x]
    bars = trace(
        "bar",
        x=x,
        y=shares,
        marker={"color": [BLUE if 0 <= s <= (x[-1] if bound is None else bound) else RED for s in x]},
        customdata=[counts[s] for s in x],
        hovertemplate="staleness %{x}: %{customdata:,} trajectories, %{y:.1%}<extra></extra>",
        text=[_share(share) for share in shares],
        textposition="outside",
        cliponaxis=False,
    )
    chart = spec(
        [bars],
        "staleness (publishes)",
        "share of trajectories",
        [] if bound is None else [(bound + 0.5, f" bound K = {bound}")],
        hovermode="closest",
        yaxis_tickformat=".0%",
        yaxis_range=[0, max(shares) * 1.18],
        xaxis_dtick=1 if len(x) <= 24 else None,
        xaxis_range=[x[0] - 0.6, x[-1] + 1.4],
    )
    return Figure("staleness", title, caption, chart)


def _share(share: float) -> str:
    """A bar's label; what is rare must not read as never, nor what is usual as always."""
    if 0 < share < 0.01:
        return "<1%"
    return ">99%" if 0.99 < share < 1 else f"{share:.0%}" if share else ""


def length_figure(run: Run, story: Story) -> Figure:
    """Response lengths on a log axis, finished against trained on."""
    title = "Response lengths"
    caption = (
        "Finished (grey) and trained on (blue) should have the same shape: if the blue one lacked the right tail, long"
        " responses would be dropped."
    )
    finished = np.array([heard.event.tokens for heard in story.accepted.values()], dtype=np.float64)
    if not finished.size:
        return Figure("lengths", title, caption, None)
    consumed = story.consumed_groups
    trained = np.array(
        [h.event.tokens for t, h in story.accepted.items() if t // story.group_size in consumed], dtype=np.float64
    )
    top = max(2.0, float(finished.max()))
    edges = np.unique(np.round(np.geomspace(1, top + 1, 36)))
    labels = [f"{low:.0f} to {high - 1:.0f} tokens" for low, high in pairwise(edges)]
    traces = []
    for name, values, colour in (("finished", finished, GREY), ("trained on", trained, BLUE)):
        if not values.size:
            continue
        counts, _ = np.histogram(np.maximum(values, 1), edges)
        hover = f"%{{customdata}}: %{{y:.2%}} of {values.size:,} {name}<extra></extra>"
        traces.append(
            trace(
                "scatter",
                x=edges,
                y=np.append(counts / values.size, 0.0),
                customdata=[*labels, ""],
                name=f"{name}: mean {values.mean():.1f}, max {values.max():.0f}",
                mode="lines",
                line={"shape": "hv", "color": colour, "width": 2},
                fill="tozeroy" if colour == GREY else None,
                hovertemplate=hover,
            )
        )
    chart = spec(
        traces,
        "response length (tokens, log scale)",
        "share of responses",
        [(float(finished.mean()), " mean"), (top, " max")],
        xaxis_type="log",
        xaxis_range=[0, float(np.log10(top * 1.25))],
        xaxis_tickvals=ROUND,
        yaxis_tickformat=".0%",
        hovermode="closest",
    )
    return Figure("lengths", title, caption, chart)
