"""Figures of stability: how far the policy drifts, how fast, by which law, and how much the stale data still counts."""

from __future__ import annotations

from typing import Any

from offbeat.records import Instruments
from offbeat.report.figures_learning import session_steps
from offbeat.report.read import Run
from offbeat.report.story import Story
from offbeat.report.style import BLUE, GREEN, GREY, ORANGE, RED, VERSION_CYCLE, VIOLET, Figure, Trace, line, spec

LINES = len(VERSION_CYCLE)
"""Stalenesses drawn apart at most: the largest of them."""


def stability_figures(run: Run, story: Story) -> list[Figure]:
    """Drift, exponent, update norm, sample size, clip share and KL by staleness; none for a log without them."""
    charts = _Charts(story)
    if not any(charts.measured) and charts.trained:
        return []
    return [
        charts.drift(), charts.exponent(), charts.update_norm(),
        charts.sample_size(run.settings.learner.ess_reference), charts.clip_by_staleness(), charts.kl_by_staleness(),
        *charts.mismatch(),
    ]  # fmt: skip


class _Charts:
    def __init__(self, story: Story) -> None:
        trained = [event for _, _, event in story.publishes]
        self.trained = len(trained)
        self.measured: list[Instruments | None] = [event.report.instruments for event in trained]
        self._split = [event.report.mismatch for event in trained]
        self._x = [event.version for event in trained]
        self._marks = session_steps(story)

    def _column(self, name: str) -> list[float | None]:
        return [None if each is None else getattr(each, name) for each in self.measured]

    def _by_staleness(self, name: str, words: str) -> list[Any]:
        rows: list[tuple[float | None, ...]] = [() if each is None else getattr(each, name) for each in self.measured]
        ages = [s for s in range(max(map(len, rows), default=0)) if any(s < len(r) and r[s] is not None for r in rows)]
        return [
            line(
                self._x,
                [row[s] if s < len(row) else None for row in rows],
                f"staleness {s}",
                VERSION_CYCLE[s % LINES],
                f"staleness {s}: {words}",
                line={"color": VERSION_CYCLE[s % LINES], "width": 1.5},
            )
            for s in ages[-LINES:]
        ]

    def _card(self, name: str, title: str, caption: str, y: str, traces: list[Trace], **layout: Any) -> Figure:
        seen = any(value is not None for trace in traces for value in trace["y"])
        drawn = spec(traces, "version published", y, self._marks, height=240, **layout) if seen else None
        return Figure(name, title, caption, drawn, size="third")

    def drift(self) -> Figure:
        return self._card(
            "drift",
            "Drift of the parameters",
            "Distance of the parameters from version 0, and from the oldest version that sampled for the batch"
            " (within a cycle: what stale data has to bridge).",
            "Euclidean distance",
            [
                line(self._x, self._column("drift_from_start"), "from the start", BLUE, "from version 0 %{y:.4g}"),
                line(self._x, self._column("cycle_drift"), "within the cycle", ORANGE, "within the cycle %{y:.4g}"),
            ],
        )

    def exponent(self) -> Figure:
        guides = [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y}
            | {"line": {"dash": "dash", "width": 1, "color": GREY}}
            for y in (0.5, 1.0)
        ]
        return self._card(
            "drift-exponent",
            "Exponent of the drift",
            "Drift from the start grows as the summed learning rate to this power: 1 (ballistic, towards collapse)"
            " or 0.5 (diffusive), dashed.",
            "exponent",
            [line(self._x, self._column("drift_exponent"), "exponent", VIOLET, "exponent %{y:.3f}")],
            shapes=guides,
        )

    def update_norm(self) -> Figure:
        return self._card(
            "update-norm",
            "Update norm G_upd",
            "Length of an update per unit of learning rate. Staleness times rate times this is how far the learner is"
            " ahead of its data.",
            "distance / learning rate",
            [line(self._x, self._column("g_upd"), "G_upd", GREEN, "G_upd %{y:.4g}")],
        )

    def sample_size(self, reference: float | None) -> Figure:
        traces = [line(self._x, self._column("effective_sample_size"), "sample size", BLUE, "sample size %{y:.1%}")]
        if reference is not None:
            traces.append(line(self._x, self._column("rate_scale"), "rate scale", RED, "rate scaled by %{y:.3f}"))
        return self._card(
            "sample-size",
            "Effective sample size",
            "Share of the trajectories that still count when each is weighted by target / behaviour: 100 % on policy.",
            "share of trajectories",
            traces,
            yaxis_tickformat=".0%",
            yaxis_range=[0, 1.05],
        )

    def clip_by_staleness(self) -> Figure:
        return self._card(
            "clip-staleness",
            "Clipped tokens by staleness",
            "Share of tokens that the objective clipped, of trajectories so many publishes old.",
            "share of tokens",
            self._by_staleness("clip_share_by_staleness", "%{y:.2%} clipped"),
            yaxis_tickformat=".1~%",
        )

    def kl_by_staleness(self) -> Figure:
        return self._card(
            "kl-staleness",
            "Policy lag by staleness",
            "Estimated KL(behaviour || target) of trajectories so many publishes old.",
            "KL (nats per token)",
            self._by_staleness("lag_kl_by_staleness", "KL %{y:.2e}"),
            yaxis_exponentformat="power",
        )

    def mismatch(self) -> list[Figure]:
        """One figure, none where it was never measured."""
        if not any(self._split):
            return []
        parts = [
            ("engine_error", "mean", "engine error", RED), ("engine_error", "p99", "engine error, p99", ORANGE),
            ("policy_lag", "mean", "policy lag", BLUE), ("policy_lag", "p99", "policy lag, p99", VIOLET),
        ]  # fmt: skip
        traces = [
            line(
                self._x,
                [None if split is None else getattr(getattr(split, part), measure) for split in self._split],
                name,
                colour,
                f"{name} %{{y:.2e}}",
            )
            for part, measure, name, colour in parts
        ]
        figure = self._card(
            "mismatch",
            "Mismatch of log-probs, split",
            "Stated by the engine against computed under the version that sampled (engine error), and that against the"
            " target (policy lag).",
            "nats per token",
            traces,
            yaxis_exponentformat="power",
        )
        return [figure]
