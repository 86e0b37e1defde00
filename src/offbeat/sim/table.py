"""Simulated schedules for the terminal: one column a schedule, one row a number."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offbeat.sim.cluster import Cluster
from offbeat.sim.simulate import Simulated
from offbeat.sim.sweep import Point

ROWS: tuple[tuple[str, str, str], ...] = (
    ("iteration, min", "step_minutes", ".2f"),
    ("  rollout only, min", "rollout_only_minutes", ".2f"),
    ("trajectories/s", "trajectories_per_second", ",.2f"),
    ("tokens/s", "tokens_per_second", ",.0f"),
    ("slots busy", "slots_busy", ".3f"),
    ("learner idle", "learner_idle", ".3f"),
    ("bubble of lengths", "bubble", ".2f"),
    ("staleness, mean", "staleness_mean", ".2f"),
    ("staleness, max", "staleness_max", "d"),
    ("length trained on", "length_trained", ",.0f"),
    ("groups evicted", "evicted_groups", "d"),
    ("lanes", "lanes", "d"),
    ("learner accelerators", "learner_accelerators", "d"),
)
"""Heading, number, format."""


def shown(value: float, form: str) -> str:
    """A number in its format, with three digits where that would leave it fewer."""
    return f"{value:.3g}" if form.endswith("f") and 0 < abs(value) < 0.1 else format(value, form)


def table(cluster: Cluster, done: Sequence[Simulated]) -> RenderableType:
    title = f"{cluster.name}: {cluster.accelerators:,} accelerators, {cluster.run.iterations} iterations"
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("", no_wrap=True)
    results = [one.result for one in done]
    for one in done:
        drawn.add_column(one.schedule.replace("-", "-\n"), justify="right")
    rates = [result["trajectories_per_second"] for result in results]
    drawn.add_row("first ÷ this", *("" if i == 0 else f"{rates[0] / rate:.2f}" for i, rate in enumerate(rates)))
    for heading, name, form in ROWS:
        drawn.add_row(heading, *(shown(result[name], form) for result in results))
    return Group(Text(title), drawn)


def sweep_table(points: Sequence[Point], chosen: Point) -> Table:
    """The points of a sweep, the chosen one marked."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for key in points[0].values:
        drawn.add_column(key.rpartition(".")[2], justify="right")
    for heading in ("iteration, min", "trajectories/s", "slots busy", "learner idle", "staleness", ""):
        drawn.add_column(heading, justify="right")
    for point in points:
        r = point.result
        drawn.add_row(
            *(str(value) for value in point.values.values()),
            f"{r['step_minutes']:.2f}",
            shown(r["trajectories_per_second"], ",.2f"),
            f"{r['slots_busy']:.3f}",
            f"{r['learner_idle']:.3f}",
            f"{r['staleness_mean']:.2f}",
            "best" if point is chosen else "",
        )
    return drawn
