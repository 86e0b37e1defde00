"""One look for all figures: colours that hold on light and dark ground, axes, hover boxes, session marks.

The page's script adds the colours that depend on the reader's scheme (text, grid); here they are left open. Figures
are plain Plotly JSON: its Python objects would check every key again at the end of every run; tests do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

Trace = dict[str, Any]
"""A trace of Plotly's schema."""
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
_RED_TO_GREEN = (
    "#a50026", "#d73027", "#f46d43", "#fdae61", "#fee08b", "#ffffbf",
    "#d9ef8b", "#a6d96a", "#66bd63", "#1a9850", "#006837",
)  # fmt: skip
RED_TO_GREEN = [[k / 10, colour] for k, colour in enumerate(_RED_TO_GREEN)]
"""ColorBrewer's RdYlGn."""
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
    traces: Sequence[Trace],
    x: str,
    y: str,
    marks: Sequence[tuple[float, str]] = (),
    height: int = 300,
    **layout: Any,
) -> str:
    """Plotly JSON of one plain chart. `marks` are vertical lines (x, label), drawn for resumes; of `layout`, what
    begins with an axis and a line (`xaxis_type`) is the axis's."""
    axes = {"xaxis": _axis(x) | {"showline": True}, "yaxis": _axis(y) | {"rangemode": "tozero"}}
    for name in list(layout):
        axis, _, key = name.partition("_")
        if key:
            axes[axis][key] = layout.pop(name)
    logarithmic = axes["xaxis"].get("type") == "log"
    whole = {
        "height": height,
        "margin": {"l": 58, "r": 14, "t": 30, "b": 44},
        "hovermode": "x unified",
        "showlegend": len([t for t in traces if t.get("showlegend", True)]) > 1,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 12},
        "bargap": 0.08,
        "shapes": [_mark(at) for at, _ in marks],
        # Plotly wants decades for the words, but values for the line.
        "annotations": [_words(math.log10(at) if logarithmic else at, label) for at, label in marks],
    }
    return encoded({"data": list(traces), "layout": whole | axes | layout})


def encoded(figure: dict[str, Any]) -> str:
    """JSON of a figure; what is no finite number is null, a gap."""
    return msgspec.json.encode(figure, enc_hook=_plain).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(type(value))


def _axis(title: str) -> Trace:
    return {"title": {"text": title, "standoff": 8, "font": {"size": 12}}, "zeroline": False}


def _mark(at: float) -> Trace:
    line = {"dash": "dot", "width": 1, "color": GREY}
    return {"type": "line", "x0": at, "x1": at, "xref": "x", "y0": 0, "y1": 1, "yref": "y domain", "line": line}


def _words(at: float, label: str) -> Trace:
    corner = {"x": at, "y": 1, "yref": "paper", "yanchor": "top", "xanchor": "left"}
    return corner | {"text": label, "showarrow": False, "font": {"size": 10, "color": GREY}}


def trace(kind: str, **settings: Any) -> Trace:
    """A trace of one of Plotly's kinds: "bar", "heatmap", "scatter"..."""
    return {"type": kind} | settings


def line(x: Any, y: Any, name: str, colour: str, hover: str, **options: Any) -> Trace:
    """A line; `hover` is a Plotly hover template that says what the number is."""
    settings = {"mode": "lines", "line": {"color": colour, "width": 2}} | options
    return trace("scatter", x=x, y=y, name=name, hovertemplate=f"{hover}<extra></extra>", **settings)


def faint(x: Any, y: Any, name: str, colour: str, hover: str) -> Trace:
    """The single values behind a smoothed line."""
    marker = {"color": colour, "size": 4, "opacity": 0.6}
    return trace("scatter", x=x, y=y, name=name, mode="markers", marker=marker, hovertemplate=f"{hover}<extra></extra>")
