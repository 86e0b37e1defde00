"""Simulated schedules for the terminal: one column a schedule, one row a number."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from offbeat.sim.cluster import Cluster
from offbeat.sim.simulate import Simulated

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


def table(cluster: Cluster, done: Sequence[Simulated]) -> Table:
    title = f"{cluster.name}: {cluster.accelerators:,} accelerators, {cluster.run.iterations} iterations"
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    drawn.add_column("", no_wrap=True)
    results = [one.result for one in done]
    for one in done:
        drawn.add_column(one.schedule.replace("-", "-\n"), justify="right")
    rates = [float(str(result["trajectories_per_second"])) for result in results]
    drawn.add_row("first ÷ this", *("" if i == 0 else f"{rates[0] / rate:.2f}" for i, rate in enumerate(rates)))
    for heading, name, form in ROWS:
        drawn.add_row(heading, *(format(result[name], form) for result in results))
    return drawn
