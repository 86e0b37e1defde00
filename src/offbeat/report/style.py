"""One look for all figures: colours that hold on light and dark ground, axes, hover boxes, session marks.

The page's script adds the colours that depend on the reader's scheme (text, grid); here they are left open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

BLUE, ORANGE, GREEN, VIOLET, RED, OCHRE, GREY = (
    "#3f86cf",
    "#e38b2c",
    "#2a9d76",
    "#8d70c9",
    "#d4525f",
    "#a3953a",
    "#8a94a3",
)
ROUND = [m * 10.0**k for k in range(-4, 7) for m in (1, 2, 5)]
"""Ticks of a log axis: 1, 2, 5, 10, 20, 50..."""
VERSION_CYCLE = (BLUE, ORANGE, GREEN, VIOLET, RED, OCHRE)


@dataclass(frozen=True)
class Figure:
    """A card of the page: `spec` is Plotly JSON, or None when the run has nothing to show here yet."""

    name: str
    title: str
    caption: str
    spec: str | None
    size: str = "half"


@dataclass(frozen=True)
class Clock:
    """Run time in the unit that reads best."""

    unit: str
    seconds: float

    @classmethod
    def for_run(cls, wall_seconds: float) -> Clock:
        if wall_seconds < 300:
            return cls("s", 1.0)
        return cls("min", 60.0) if wall_seconds < 3 * 3600 else cls("h", 3600.0)

    @property
    def axis(self) -> str:
        return f"run time ({self.unit})"


def spec(
    traces: Sequence[Any],
    x: str,
    y: str,
    marks: Sequence[tuple[float, str]] = (),
    height: int = 300,
    **layout: Any,
) -> str:
    """Plotly JSON of one plain chart. `marks` are vertical lines (x, label), drawn for resumes."""
    figure = go.Figure(list(traces))
    figure.update_layout(
        template=None,
        height=height,
        margin={"l": 58, "r": 14, "t": 30, "b": 44},
        hovermode="x unified",
        showlegend=len([t for t in traces if t.showlegend is not False]) > 1,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
        font={"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 12},
        xaxis={"title": {"text": x, "standoff": 8, "font": {"size": 12}}, "zeroline": False, "showline": True},
        yaxis={"title": {"text": y, "standoff": 8, "font": {"size": 12}}, "zeroline": False, "rangemode": "tozero"},
        bargap=0.08,
    )
    figure.update_layout(**layout)
    logarithmic = layout.get("xaxis_type") == "log"
    for at, label in marks:
        figure.add_vline(x=at, line={"dash": "dot", "width": 1, "color": GREY})
        figure.add_annotation(
            x=math.log10(at) if logarithmic else at,  # Plotly wants decades here, but values for the line
            y=1,
            yref="paper",
            yanchor="top",
            xanchor="left",
            text=label,
            showarrow=False,
            font={"size": 10, "color": GREY},
        )
    return str(figure.to_json())


def line(x: Any, y: Any, name: str, colour: str, hover: str, **options: Any) -> Any:
    """A line; `hover` is a Plotly hover template that says what the number is."""
    settings = {"mode": "lines", "line": {"color": colour, "width": 2}} | options
    return go.Scatter(x=x, y=y, name=name, hovertemplate=f"{hover}<extra></extra>", **settings)


def faint(x: Any, y: Any, name: str, colour: str, hover: str) -> Any:
    """The single values behind a smoothed line."""
    marker = {"color": colour, "size": 4, "opacity": 0.6}
    return go.Scatter(x=x, y=y, name=name, mode="markers", marker=marker, hovertemplate=f"{hover}<extra></extra>")
