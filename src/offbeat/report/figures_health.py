"""Figures of the learner's health: what an engineer looks at when learning goes wrong, one small chart each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from offbeat.report.figures_learning import session_steps
from offbeat.report.read import Run
from offbeat.report.story import Story
from offbeat.report.style import BLUE, GREEN, GREY, ORANGE, RED, ROUND, VIOLET, Figure, Trace, line, spec


def learner_figures(run: Run, story: Story) -> list[Figure]:
    """Ratio, clipping, lag, entropy, gradient norm and skips, each over versions."""
    charts = _Charts(run, story)
    return [charts.ratio(), charts.clip(), charts.lag(), charts.entropy(), charts.gradient(), charts.skips()]


class _Charts:
    def __init__(self, run: Run, story: Story) -> None:
        self._settings = run.settings.learner
        self._reports = [trained.report for _, _, trained in story.publishes]
        self._x = [trained.version for _, _, trained in story.publishes]
        self._marks = session_steps(story)

    def _column(self, name: str) -> list[float]:
        return [getattr(report, name) for report in self._reports]

    def _line(self, column: str, name: str, colour: str, hover: str, width: float = 2) -> Trace:
        return line(self._x, self._column(column), name, colour, hover, line={"color": colour, "width": width})

    def _card(self, name: str, title: str, caption: str, y: str, *traces: Any, **layout: Any) -> Figure:
        drawn = spec(traces, "version published", y, self._marks, height=240, **layout) if self._x else None
        return Figure(name, title, caption, drawn, size="third")

    def ratio(self) -> Figure:
        bounds = self._settings.objective.ratio_bounds
        clip = f"; outside {bounds[0]:g} to {bounds[1]:g} the objective is clipped" if bounds else ""
        return self._card(
            "ratio",
            "Importance ratio",
            f"target / behaviour probability of a token: a mean near 1 is healthy{clip}.",
            "ratio (log scale)",
            self._line("ratio_max", "largest", ORANGE, "largest ratio %{y:.3g}"),
            self._line("ratio_mean", "mean", BLUE, "mean ratio %{y:.4f}"),
            yaxis_type="log",
            yaxis_range=_decades([*self._column("ratio_mean"), *self._column("ratio_max")], 0.8, 1.25),
            yaxis_tickvals=ROUND,
        )

    def clip(self) -> Figure:
        ppo = self._settings.objective.ratio_bounds is not None
        usual = " Growing with staleness is normal, above about 20 % is not." if ppo else ""
        return self._card(
            "clip",
            "Clipped tokens",
            f"Share of tokens that the objective clipped, truncated or masked.{usual}",
            "share of tokens",
            self._line("clip_share", "clip share", VIOLET, "%{y:.2%} of tokens clipped"),
            yaxis_tickformat=".1~%",
        )

    def lag(self) -> Figure:
        return self._card(
            "kl",
            "Policy lag",
            "Estimated KL(behaviour || target): how far the learner has moved from the versions that sampled.",
            "KL (nats per token)",
            self._line("policy_lag_kl", "KL", RED, "KL %{y:.2e} nats per token"),
            yaxis_exponentformat="power",
        )

    def entropy(self) -> Figure:
        return self._card(
            "entropy",
            "Entropy",
            "Mean entropy of the target policy per token; a fall to zero means it stopped exploring.",
            "entropy (nats)",
            self._line("entropy", "entropy", GREEN, "entropy %{y:.3f} nats"),
        )

    def gradient(self) -> Figure:
        limit, norms = self._settings.max_gradient_norm, self._column("gradient_norm")
        dashed = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": limit, "y1": limit}
        dashed["line"] = {"dash": "dash", "width": 1, "color": GREY}
        return self._card(
            "gradient",
            "Gradient norm",
            f"Before clipping at {limit:g} (dashed); spikes are batches that disagree with the policy strongly, a"
            " gap is an iteration that taught nothing.",
            "norm (log scale)",
            line(self._x, [norm or None for norm in norms], "norm", BLUE, "gradient norm %{y:.3g}"),
            yaxis_type="log",
            yaxis_range=_decades(norms, limit * 0.8, limit * 1.25),
            yaxis_tickvals=ROUND,
            shapes=[dashed],
        )

    def skips(self) -> Figure:
        return self._card(
            "skips",
            "Skipped updates and idle groups",
            "Updates left out for a loss or gradient that is not finite, and groups whose rewards were all equal and so"
            " taught nothing.",
            "count per iteration",
            self._line("zero_advantage_groups", "idle groups", GREY, "%{y} groups with equal rewards", width=1.5),
            self._line("skipped_updates", "skipped", RED, "%{y} updates skipped"),
        )


def _decades(values: Sequence[float], low: float, high: float) -> list[float]:
    """Range of a log axis: all positive values, at least `low` to `high`, so that rounding does not look like drift."""
    seen = [value for value in values if value > 0]
    return [math.log10(min([low, *seen])) - 0.02, math.log10(max([high, *seen])) + 0.02]
