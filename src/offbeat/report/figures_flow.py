"""Figures of how the run flowed: staleness, response lengths, throughput."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from statistics import median

import numpy as np
import plotly.graph_objects as go

from offbeat import events as e
from offbeat.report.bins import bin_edges, count_rate, mean_rate
from offbeat.report.figures_learning import session_marks
from offbeat.report.read import Run
from offbeat.report.story import Story
from offbeat.report.style import BLUE, GREEN, GREY, ORANGE, RED, Clock, Figure, line, spec

_ROUND = [m * 10**k for k in range(6) for m in (1, 2, 5)]
"""Ticks of a log axis of token counts: 1, 2, 5, 10, 20, 50..."""


def staleness_figure(run: Run, story: Story) -> Figure:
    """Histogram of staleness at consumption, the bound marked."""
    bound = run.settings.schedule.staleness_bound
    title = "Staleness of what was trained on"
    caption = (
        f"How many publishes lay between sampling a trajectory and training on it; nothing may lie beyond the bound"
        f" K = {bound}."
    )
    stale = story.staleness
    if not stale:
        return Figure("staleness", title, caption, None)
    counts = Counter(stale)
    x = list(range(min(0, *counts), max(bound, *counts) + 1))
    shares = [counts[s] / len(stale) for s in x]
    bars = go.Bar(
        x=x,
        y=shares,
        marker={"color": [BLUE if 0 <= s <= bound else RED for s in x]},
        customdata=[counts[s] for s in x],
        hovertemplate="staleness %{x}: %{customdata:,} trajectories, %{y:.1%}<extra></extra>",
        text=[f"{share:.0%}" if share else "" for share in shares],
        textposition="outside",
        cliponaxis=False,
    )
    chart = spec(
        [bars],
        "staleness (publishes)",
        "share of trajectories",
        [(bound + 0.5, f" bound K = {bound}")],
        hovermode="closest",
        yaxis_tickformat=".0%",
        yaxis_range=[0, max(shares) * 1.18],
        xaxis_dtick=1 if len(x) <= 24 else None,
        xaxis_range=[x[0] - 0.6, x[-1] + 1.4],
    )
    return Figure("staleness", title, caption, chart)


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
            go.Scatter(
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
        xaxis_tickvals=_ROUND,
        yaxis_tickformat=".0%",
        hovermode="closest",
    )
    return Figure("lengths", title, caption, chart)


def throughput_figures(run: Run, story: Story) -> list[Figure]:
    """Trajectories and tokens a second, slots busy, over run time."""
    clock = Clock.for_run(run.wall_seconds)
    edges = bin_edges(run.wall_seconds, narrowest=_bin_width(story, run.wall_seconds))
    middle = (edges[:-1] + edges[1:]) / 2 / clock.seconds
    marks = session_marks(story, clock)
    accepted = [heard.event for heard in story.accepted.values()]
    starts = np.array([event.started for event in accepted])
    ends = np.array([event.ended for event in accepted])
    tokens = np.array([event.tokens for event in accepted], dtype=np.float64)
    slots = run.settings.rollout.lanes * run.settings.rollout.slots
    trained = np.array([now for _, now, _ in story.publishes])
    consumed = np.array([t.report.trajectories for _, _, t in story.publishes], dtype=np.float64)
    busy = mean_rate(starts, ends, ends - starts, edges) / slots if accepted else None
    learning = [(t.started, t.ended) for _, _, t in story.publishes]
    learner = None
    if learning:
        began, over = np.array(learning).T
        learner = mean_rate(began, over, over - began, edges)

    def card(name: str, title: str, caption: str, y: str, traces: list[object], **layout: object) -> Figure:
        chart = spec(traces, clock.axis, y, marks, height=250, **layout) if accepted else None
        return Figure(name, title, caption, chart, size="third")

    width = f"{edges[1] - edges[0]:.2g} s"
    rate = [line(middle, count_rate(ends, edges), "finished", BLUE, "%{y:.1f} finished per second")]
    if trained.size:
        since = np.concatenate([[0.0], trained[:-1]])
        used = mean_rate(since, trained, consumed, edges)
        rate.append(line(middle, used, "trained on", ORANGE, "%{y:.1f} trained on per second"))
    use = [] if busy is None else [line(middle, busy, "rollout slots", BLUE, "%{y:.1%} of slots busy")]
    if learner is not None:
        use.append(line(middle, learner, "learner", ORANGE, "learner busy %{y:.1%} of the time"))
    return [
        card(
            "rate",
            "Trajectories per second",
            f"Means over {width}; a batch is spread over the time since the one before it, so the lines lie close.",
            "trajectories / s",
            rate,
        ),
        card(
            "tokens",
            "Tokens per second",
            "Response tokens that reached an accepted trajectory, spread over the time each was decoded.",
            "tokens / s",
            [line(middle, mean_rate(starts, ends, tokens, edges), "tokens", GREEN, "%{y:,.0f} tokens per second")],
        ),
        card(
            "busy",
            "Busy share",
            f"Rollout slots in use as a share of the {slots} set (spare engine rows can lift it above 100 %), and the"
            " share of time in which the learner trained.",
            "share busy",
            use,
            yaxis_tickformat=".0%",
            yaxis_range=[0, 1.05 * max(1.0, busy.max() if busy is not None else 1.0)],
        ),
    ]


def _bin_width(story: Story, seconds: float) -> float:
    """Narrow enough for 20 bins, else at least three iterations wide, so that a curve shows trends and not beats."""
    times = [now for _, now, _ in story.publishes]
    period = median(b - a for a, b in pairwise(times)) if len(times) > 1 else 0.0
    return max(0.25, min(3 * period, seconds / 20))


def incident_rows(run: Run) -> list[tuple[float, int, str, str]]:
    """Everything out of the ordinary, in order: (run time, seq, what, detail)."""
    rows: list[tuple[float, int, str, str]] = []
    for record in run.records:
        what = _incident(record.event)
        if what:
            rows.append((record.now, record.seq, *what))
        for command in record.commands:
            deed = _deed(record.event, command)
            if deed:
                rows.append((record.now, record.seq, *deed))
    return rows


def _incident(event: e.Event) -> tuple[str, str] | None:
    match event:
        case e.Opened(session=session) if session > 0:
            return "resumed", f"session {session}"
        case e.LaneLost():
            return "lane lost", f"lane {event.lane}: {event.reason}"
        case e.LearnerLost():
            return "learner lost", event.reason
        case e.GenerationFailed():
            return "generation failed", f"trajectory {event.trajectory_id}, attempt {event.attempt}: {event.reason}"
        case e.ScoreFailed():
            return "score failed", f"trajectory {event.trajectory_id}, attempt {event.attempt}: {event.reason}"
        case e.EvaluationFailed():
            return "evaluation failed", f"version {event.version}: {event.reason}"
        case e.WorldFailed() | e.StopRequested():
            return "stop asked for" if isinstance(event, e.StopRequested) else "failed", event.reason
        case e.Trained() if event.report.skipped_updates:
            return "update skipped", f"iteration {event.report.iteration}: loss or gradient not finite"
    return None


def _deed(event: e.Event, command: e.Command) -> tuple[str, str] | None:
    match command:
        case e.Generate() if max(command.attempts, default=0) > 0:
            ids = ", ".join(map(str, command.trajectory_ids))
            return "restarted", f"trajectories {ids} on lane {command.lane} under version {command.version}"
        case e.Abort() if not isinstance(event, e.PromptRejected):
            return "aborted", f"trajectories {', '.join(map(str, command.trajectory_ids))} on lane {command.lane}"
        case e.Quarantine():
            return "quarantined", f"prompt group {command.group_id}: {command.reason}"
        case e.Stop():
            return f"stop: {command.outcome}", command.reason
    return None
