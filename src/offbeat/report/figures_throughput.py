"""Figures of speed over run time: trajectories and tokens a second, and the share of slots and learner at work."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from offbeat.report.bins import Floats, bin_edges, count_rate, mean_rate
from offbeat.report.figures_learning import session_marks
from offbeat.report.heartbeats import heartbeats
from offbeat.report.read import Run
from offbeat.report.story import Story
from offbeat.report.style import BLUE, GREEN, GREY, ORANGE, Clock, Figure, Trace, faint, line, spec


def throughput_figures(run: Run, story: Story) -> list[Figure]:
    """Trajectories a second, tokens a second, busy share: each a mean over equal bins of run time."""
    charts = _Charts(run, story)
    return [charts.rate(), charts.tokens(), charts.busy()]


class _Charts:
    def __init__(self, run: Run, story: Story) -> None:
        self._story = story
        self._clock = Clock.for_run(run.wall_seconds)
        self._edges = bin_edges(run.wall_seconds, narrowest=_bin_width(story, run.wall_seconds))
        self._middle = (self._edges[:-1] + self._edges[1:]) / 2 / self._clock.seconds
        self._marks = session_marks(story, self._clock)
        self._beats = heartbeats(run)
        self._slots = run.settings.rollout.lanes * run.settings.rollout.slots
        accepted = [heard.event for heard in story.accepted.values()]
        self._starts = np.array([event.started for event in accepted])
        self._ends = np.array([event.ended for event in accepted])
        self._tokens = np.array([event.tokens for event in accepted], dtype=np.float64)

    def _line(self, y: Floats, name: str, colour: str, hover: str, width: float = 2) -> Trace:
        return line(self._middle, y, name, colour, hover, line={"color": colour, "width": width})

    def _card(self, name: str, title: str, caption: str, y: str, traces: list[Trace], **layout: Any) -> Figure:
        shown = self._starts.size or self._beats.tokens.size
        chart = spec(traces, self._clock.axis, y, self._marks, height=250, **layout) if shown else None
        return Figure(name, title, caption, chart, size="third")

    def rate(self) -> Figure:
        finished = count_rate(self._ends, self._edges)
        traces = [self._line(finished, "finished", BLUE, "%{y:.1f} finished per second")]
        trained = np.array([now for _, now, _ in self._story.publishes])
        if trained.size:
            sizes = np.array([t.report.trajectories for _, _, t in self._story.publishes], dtype=np.float64)
            since = np.concatenate([[0.0], trained[:-1]])
            used = mean_rate(since, trained, sizes, self._edges)
            traces.append(self._line(used, "trained on", ORANGE, "%{y:.1f} trained on per second"))
        width = f"{self._edges[1] - self._edges[0]:.2g} s"
        return self._card(
            "rate",
            "Trajectories per second",
            f"Means over {width}; a batch is spread over the time since the one before it, so the lines lie close.",
            "trajectories / s",
            traces,
        )

    def tokens(self) -> Figure:
        accepted = mean_rate(self._starts, self._ends, self._tokens, self._edges)
        traces = [self._line(accepted, "accepted", GREEN, "%{y:,.0f} accepted tokens per second")]
        if self._beats.tokens.size:
            decoded = self._beats.decoded_rate(self._edges)
            traces.insert(0, self._line(decoded, "decoded", GREY, "%{y:,.0f} decoded tokens per second", width=1.5))
        return self._card(
            "tokens",
            "Tokens per second",
            "Response tokens. Where the lanes decoded (grey, from their heartbeats) more than what was accepted"
            " (green), the rest went to evaluation or was lost.",
            "tokens / s",
            traces,
        )

    def busy(self) -> Figure:
        busy = mean_rate(self._starts, self._ends, self._ends - self._starts, self._edges) / self._slots
        traces = []
        if self._beats.times.size:
            said = self._beats.mean_busy(self._edges) / self._slots
            traces.append(faint(self._middle, said, "heartbeats", GREY, "heartbeats: %{y:.1%} of slots in use"))
        traces.append(self._line(busy, "rollout slots", BLUE, "%{y:.1%} of slots busy"))
        learning = [(t.started, t.ended) for _, _, t in self._story.publishes]
        if learning:
            began, over = np.array(learning).T
            share = mean_rate(began, over, over - began, self._edges)
            traces.append(self._line(share, "learner", ORANGE, "learner busy %{y:.1%} of the time"))
        return self._card(
            "busy",
            "Busy share",
            f"Share of the {self._slots} rollout slots that held a trajectory which then finished (blue), samples of"
            " it by heartbeats (dots), and share of time in which the learner trained.",
            "share busy",
            traces,
            yaxis_tickformat=".0%",
            yaxis_range=[0, 1.05 * max(1.0, busy.max())],
        )


def _bin_width(story: Story, seconds: float) -> float:
    """Narrow enough for 20 bins, else at least three iterations wide, so that a curve shows trends and not beats."""
    times = [now for _, now, _ in story.publishes]
    period = median(b - a for a, b in pairwise(times)) if len(times) > 1 else 0.0
    return max(0.25, min(3 * period, seconds / 20))
