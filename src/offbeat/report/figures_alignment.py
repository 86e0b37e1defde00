"""Figures of gradient alignment: how a step's gradient lies to the ones before, and what control made of it.

There are none where `learner.align` was off. Reads step reports only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offbeat.records import StepAlignment
from offbeat.report.figures_learning import session_steps
from offbeat.report.read import Run
from offbeat.report.story import Story
from offbeat.report.style import BLUE, GREEN, GREY, OCHRE, ORANGE, RED, VIOLET, Figure, line, spec


def alignment_figures(run: Run, story: Story) -> list[Figure]:
    """Cosines, what control did, and cosines by lag, each over versions; nothing where nothing was measured."""
    found = [(trained.version, trained.report.alignment) for _, _, trained in story.publishes]
    measured = [(version, alignment) for version, alignment in found if alignment is not None]
    if not measured:
        return []
    settings = run.settings.learner.align
    fixed = settings.mode not in ("off", "observe")  # the autopilot's thresholds move, and its mode is off
    charts = _Charts(settings.c_low, settings.c_high, fixed, settings.mode != "observe", measured, session_steps(story))
    return [charts.cosines(), charts.control(), *charts.lags()]


class _Charts:
    def __init__(
        self,
        low: float,
        high: float,
        controls: bool,
        projects: bool,
        measured: Sequence[tuple[int, StepAlignment]],
        marks: list[tuple[float, str]],
    ) -> None:
        self._low, self._high, self._controls, self._projects = low, high, controls, projects
        self._x = [version for version, _ in measured]
        self._found = [alignment for _, alignment in measured]
        self._marks = marks

    def _card(self, name: str, title: str, caption: str, y: str, *traces: Any, **layout: Any) -> Figure:
        drawn = spec(traces, "version published", y, self._marks, height=240, **layout)
        return Figure(name, title, caption, drawn, size="third")

    def cosines(self) -> Figure:
        dashed = [
            {
                "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at,
                "line": {"dash": "dash", "width": 1, "color": GREY},
            }
            for at in ((self._low, self._high) if self._controls else ())
        ]  # fmt: skip
        limits = f"; projected above {self._low:g}, skipped above {self._high:g} (dashed)" if self._controls else ""
        controlled = line(
            self._x, [a.controlled for a in self._found], "controlled", GREEN, "controlled gradient %{y:.3f}"
        )
        return self._card(
            "alignment",
            "Gradient alignment",
            "Cosine of each gradient with the one before: near 0 while data is fresh, higher when stale batches repeat"
            f" a direction{limits}. Updates carry the optimizer's memory.",
            "cosine",
            line(self._x, [a.cosine for a in self._found], "gradient", BLUE, "gradient %{y:.3f}"),
            *([controlled] if self._projects else []),
            line(self._x, [a.update for a in self._found], "update", ORANGE, "update %{y:.3f}"),
            shapes=dashed,
        )

    def control(self) -> Figure:
        counts = [
            line(self._x, [getattr(a, name) for a in self._found], name, colour, f"%{{y}} {name}")
            for name, colour in (("projected", VIOLET), ("skipped", RED), ("released", ORANGE), ("invalid", GREY))
            if any(getattr(a, name) for a in self._found)
        ]
        return self._card(
            "alignment-control",
            "What control did",
            "Updates projected or skipped, projected because too many had been skipped (released), and without a valid"
            " cosine (invalid); the share of the gradient's norm that was left.",
            "updates · share",
            line(self._x, [a.kept for a in self._found], "norm left", BLUE, "%{y:.1%} of the norm left"),
            *counts,
        )

    def lags(self) -> list[Figure]:
        lags = sorted({lag for alignment in self._found for lag in alignment.lags})
        if not lags:
            return []
        colours = (BLUE, GREEN, OCHRE, ORANGE, RED, VIOLET, GREY)
        traces = [
            line(
                self._x,
                [a.lags.get(lag) for a in self._found],
                f"lag {lag}",
                colours[number % len(colours)],
                f"lag {lag}: %{{y:.3f}}",
                line={"color": colours[number % len(colours)], "width": 1.5},
            )
            for number, lag in enumerate(lags)
        ]
        return [
            self._card(
                "alignment-lags",
                "Alignment by lag",
                "Cosine of each gradient with the one so many updates before; what stays high over many updates adds up"
                " to steady drift.",
                "cosine",
                *traces,
            )
        ]
