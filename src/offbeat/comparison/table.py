"""The comparison for the terminal: one column a schedule, one row a number, so that it fits a narrow window."""

from __future__ import annotations

from rich import box
from rich.table import Table

from offbeat.comparison.result import Entry, equal_wall_clock, speedup

ROWS: tuple[tuple[str, str, str], ...] = (
    ("trajectories/s", "trajectories_per_second", ".0f"),
    ("  learner bound", "bound", ".0f"),
    ("tokens/s", "tokens_per_second", ",.0f"),
    ("iteration, s", "iteration_seconds", ".3f"),
    ("  learner, s", "learner_seconds", ".3f"),
    ("  rollout only, s", "rollout_only_seconds", ".3f"),
    ("slots busy", "slots_busy", ".2f"),
    ("bubble of lengths", "bubble", ".2f"),
    ("staleness, mean", "staleness_mean", ".2f"),
    ("staleness, max", "staleness_max", ".0f"),
    ("spans", "spans_per_trajectory", ".2f"),
    ("evicted", "evicted", ".0f"),
    ("length trained on", "trained_length", ".1f"),
    ("length finished", "finished_length", ".1f"),
    ("reward at the end", "reward_final", ".3f"),
)
"""Heading, measure, format."""


def table(found: list[Entry]) -> Table:
    """Medians over repeats. `learner bound`: trajectories a second if the learner never waited."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("", no_wrap=True)
    for entry in found:
        drawn.add_column(entry.schedule.replace("-", "-\n"), justify="right")
    first = found[0]
    drawn.add_row("first ÷ this", *("" if e is first else f"{speedup(first, e):.2f}" for e in found))
    drawn.add_row("threads a worker", *(str(entry.split.threads) for entry in found))
    drawn.add_row("split in lanes", *(str(entry.split.parts) for entry in found))
    for heading, name, form in ROWS:
        drawn.add_row(heading, *(format(entry.median(name), form) for entry in found))
    walls = equal_wall_clock(found)
    drawn.add_row("reward, equal time", *(_or_dash(walls[entry.schedule]) for entry in found))
    return drawn


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
