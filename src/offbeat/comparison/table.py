"""The comparison for the terminal: one row a schedule, the numbers people ask for first."""

from __future__ import annotations

from rich import box
from rich.table import Table

from offbeat.comparison.result import Entry, equal_wall_clock, speedup

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("traj/s", "trajectories_per_second", ".0f"),
    ("bound", "bound", ".0f"),
    ("tok/s", "tokens_per_second", ",.0f"),
    ("iter s", "iteration_seconds", ".3f"),
    ("learner s", "learner_seconds", ".3f"),
    ("rollout only s", "rollout_only_seconds", ".3f"),
    ("slots busy", "slots_busy", ".2f"),
    ("bubble", "bubble", ".2f"),
    ("stale", "staleness_mean", ".2f"),
    ("max", "staleness_max", ".0f"),
    ("spans", "spans_per_trajectory", ".2f"),
    ("reward", "reward_final", ".3f"),
)
"""Heading, measure, format."""


def table(found: list[Entry]) -> Table:
    """Medians over repeats. `bound` is what the learner alone would allow."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("schedule")
    drawn.add_column("threads", justify="right")
    drawn.add_column(f"{found[0].schedule} is faster by", justify="right")
    for heading, _, _ in COLUMNS:
        drawn.add_column(heading, justify="right")
    drawn.add_column("reward, equal time", justify="right")
    walls = equal_wall_clock(found)
    for entry in found:
        ratio = "" if entry is found[0] else f"{speedup(found[0], entry):.2f}x"
        values = [format(entry.median(name), form) for _, name, form in COLUMNS]
        wall = walls[entry.schedule]
        drawn.add_row(entry.schedule, str(entry.threads), ratio, *values, "–" if wall is None else format(wall, ".3f"))
    return drawn
