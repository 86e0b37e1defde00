"""Figures of the market: plain arrays in, cards out. *A cell with diverged runs is marked, an interval is drawn
wherever there is one.*
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from offbeat.report.style import BLUE, GREEN, GREY, OCHRE, ORANGE, RED, VIOLET, Figure, Trace, line, spec, trace

if TYPE_CHECKING:
    from offbeat.market.diagnostics.demand_shock import ShockResponse
    from offbeat.market.diagnostics.deviation import Response
    from offbeat.market.diagnostics.signalling import Signalling
    from offbeat.market.estimate import Estimate

DOTTED = {"color": GREY, "dash": "dot"}
COLOURS = (BLUE, ORANGE, GREEN, VIOLET, RED, OCHRE)


def deviation_figures(response: Response, name: str, who: str) -> list[Figure]:
    """Prices around a forced deviation in calendar time, and by decisions. `who` names the rivals that are watched."""
    times = response.times
    traces = [
        line(times, response.deviator, "deviator", ORANGE, "%{y:.4f} deviator"),
        line(times, response.rivals, who, BLUE, "%{y:.4f} " + who),
        line(
            times,
            response.rivals_base,
            f"{who}, no deviation",
            GREY,
            "%{y:.4f} without",
            line=DOTTED,
        ),
    ]
    cut = response.deviation
    caption = (
        f"Mean prices since firm {cut.firm} was forced to its {cut.kind} price for {cut.decisions} decision(s)."
        f" Punishment depth {response.depth}; net gain of deviating {response.net_gain}."
    )
    calendar = spec(traces, "time since the deviation", "price", yaxis_rangemode="normal")
    events = [
        line(
            list(range(len(response.own_events))),
            response.own_events,
            "deviator",
            ORANGE,
            "%{y:.4f} deviator",
            mode="lines+markers",
        ),
        line(
            list(range(1, len(response.rival_events) + 1)),
            response.rival_events,
            who,
            BLUE,
            "%{y:.4f} " + who,
            mode="lines+markers",
        ),
    ]
    by_event = spec(events, "own decisions since the deviation", "price", yaxis_rangemode="normal")
    return [
        Figure(f"{name}-time", "Forced deviation, calendar time", caption, calendar),
        Figure(f"{name}-events", "Forced deviation, own decisions", "Decision 0 is the deviation itself.", by_event),
    ]


def shock_figure(answer: ShockResponse) -> Figure:
    """Mean price around a demand shock."""
    traces = [
        line(answer.times, answer.prices, "with the shock", BLUE, "%{y:.4f} with"),
        line(answer.times, answer.base, "without", GREY, "%{y:.4f} without", line=DOTTED),
    ]
    marks = [(answer.shock.lasting, "demand is back")] if answer.shock.lasting < answer.times[-1] else []
    recovered = (
        "prices did not move"
        if answer.recovery is None
        else f"{answer.recovery:.0%} of the largest gap is made up at the end"
    )
    caption = f"Mean price since demand rose by {answer.shock.size:g}: {recovered}."
    chart = spec(traces, "time since the shock", "price", marks, yaxis_rangemode="normal")
    return Figure("demand-shock", "Demand shock", caption, chart)


def signalling_figure(signals: Signalling) -> Figure:
    """Slopes by fifth of the episode against the shuffled null."""
    fifths = [f"{20 * k}–{20 * (k + 1)} %" for k in range(len(signals.slope))]
    null = (signals.null_low + signals.null_high) / 2
    traces = [
        _with_bars(fifths, signals.slope, signals.low, signals.high, "own change on seen rival change", BLUE),
        _with_bars(fifths, null, signals.null_low, signals.null_high, "shuffled in time", GREY),
    ]
    chart = spec(traces, "part of the episode", "slope", yaxis_rangemode="normal", hovermode="closest")
    caption = (
        "Does a firm's price change answer the change it last saw a rival make? 95 % intervals; NaN where none moved."
    )
    return Figure("signalling", "Signalling within the episode", caption, chart)


def gains_figure(rows: Sequence[tuple[str, Estimate, dict[str, Estimate]]]) -> Figure:
    """Profit gain of a policy against each rival, beside those of null policies in its seat."""
    names = [name for name, _, _ in rows]
    traces = [_estimates(names, [gain for _, gain, _ in rows], "the policy", BLUE)]
    for null, colour in zip(rows[0][2] if rows else (), (GREY, OCHRE, VIOLET, GREEN), strict=False):
        traces.append(_estimates(names, [nulls[null] for _, _, nulls in rows], null, colour))
    chart = spec(traces, "rival", "profit gain", yaxis_rangemode="normal", hovermode="closest", scattermode="group")
    caption = (
        "0 is static competition, 1 the joint optimum. Beside it: what policies that learn nothing earn in its seat."
    )
    return Figure("gains", "Profit gain against each rival", caption, chart, size="full")


def phase_figure(
    rates: Sequence[float],
    latencies: Sequence[float],
    gains: Sequence[Sequence[Estimate]],
    diverged: Sequence[Sequence[int]],
    sustained: Sequence[Sequence[bool]],
) -> Figure:
    """The profit gain over (rate, latency): `gains[i][j]`, runs `diverged[i][j]`, and whether grim trigger is
    `sustained[i][j]`, for rate i and latency j. Text in a cell: mean and interval; a cross marks diverged runs, a ring
    a cell theory says cannot sustain the cartel price."""
    text = [[_cell(g, d) for g, d in zip(row, lost, strict=True)] for row, lost in zip(gains, diverged, strict=True)]
    heat = trace(
        "heatmap",
        x=[f"{x:g}" for x in latencies],
        y=[f"{y:g}" for y in rates],
        z=[[g.mean for g in row] for row in gains],
        text=text,
        texttemplate="%{text}",
        colorscale="Cividis",
        zmid=0.5,
        colorbar={"title": {"text": "profit gain"}},
        hovertemplate="rate %{y}, latency %{x}: %{text}<extra></extra>",
        showlegend=False,
    )
    cells = [(f"{latencies[j]:g}", f"{rates[i]:g}", i, j) for i in range(len(rates)) for j in range(len(latencies))]
    lost = [(x, y) for x, y, i, j in cells if diverged[i][j] > 0]
    unsustained = [(x, y) for x, y, i, j in cells if not sustained[i][j]]
    marks = [
        _marks(lost, "diverged runs", "x", RED),
        _marks(unsustained, "not sustained by grim trigger", "circle-open", GREY),
    ]
    layout: dict[str, Any] = {"xaxis_type": "category", "yaxis_type": "category", "hovermode": "closest"}
    chart = spec([heat, *marks], "latency", "rate", height=420, **layout)
    caption = "Mean profit gain with its 95 % interval over seeds. Compare with the null values, not with 0."
    return Figure("phase", "Rate and latency", caption, chart, size="full")


def traces_figure(times: Any, prices: Any, names: Sequence[str], nash: float, cartel: float) -> Figure:
    """Price traces: `times` (T,), `prices` (firms, T)."""
    lines = [
        line(times, row, name, colour, "%{y:.4f} " + name, line={"color": colour, "width": 1.5, "shape": "hv"})
        for row, name, colour in zip(prices, names, COLOURS, strict=False)
    ]
    lines += [
        line([times[0], times[-1]], [level, level], name, GREY, name, line=DOTTED)
        for name, level in (("Nash", nash), ("cartel", cartel))
    ]
    return Figure(
        "traces", "Prices", "One market.", spec(lines, "time", "price", yaxis_rangemode="normal"), size="full"
    )


def critic_figure(steps: Any, largest: Any, bound: float, margin: float) -> Figure:
    """Largest |Q| of each run, `largest` (T, runs), against the certificate's bound: above bound (1 + margin) a run
    has diverged.
    """
    lines = [
        line(
            steps, np.asarray(largest)[:, run], f"run {run}", COLOURS[run % len(COLOURS)], "%{y:.4g}", showlegend=False
        )
        for run in range(np.asarray(largest).shape[1])
    ]
    limit = bound * (1 + margin)
    lines.append(
        line([steps[0], steps[-1]], [limit, limit], "certificate", RED, "bound", line={"color": RED, "dash": "dash"})
    )
    caption = f"True values stay below {bound:.4g} = largest profit flow / rho; a run above {limit:.4g} is excluded."
    return Figure(
        "critic", "Critic", caption, spec(lines, "update", "largest |Q|", yaxis_type="log", yaxis_rangemode="normal")
    )


def _marks(cells: Sequence[tuple[str, str]], name: str, symbol: str, colour: str) -> Trace:
    marker = {"symbol": symbol, "size": 14, "color": colour, "line": {"width": 2}}
    return trace("scatter", x=[x for x, _ in cells], y=[y for _, y in cells], mode="markers", marker=marker, name=name)


def _cell(gain: Estimate, diverged: int) -> str:
    if not np.isfinite(gain.mean):
        return "no run"
    interval = f"<br>[{gain.low:.2f}, {gain.high:.2f}]" if np.isfinite(gain.low) else ""
    return f"{gain.mean:.2f}{interval}" + (f"<br>{diverged} diverged" if diverged else "")


def _with_bars(x: Any, y: Any, low: Any, high: Any, name: str, colour: str) -> Trace:
    error = {"type": "data", "symmetric": False, "array": high - y, "arrayminus": y - low, "color": colour}
    return trace("scatter", x=x, y=y, error_y=error, mode="markers", marker={"color": colour, "size": 9}, name=name)


def _estimates(x: Any, found: Sequence[Estimate], name: str, colour: str) -> Trace:
    y, low, high = (np.array([getattr(e, key) for e in found]) for key in ("mean", "low", "high"))
    return _with_bars(x, y, low, high, name, colour)
