"""Results of cells that were never run, made from a formula, so that what a study concludes can be checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from offbeat.eventtime.draws import Draws
from offbeat.eventtime.streams import stream_seed
from offbeat.studies.cell import Cell
from offbeat.studies.study import Design, Results

START = 0.15


def results(
    design: Design, seeds: int, values: Callable[[Cell, Draws], dict[str, Any]], smoke: bool = False
) -> Results:
    """The grid of a study with these values; each cell has its own random numbers."""
    return [(cell, values(cell, Draws(stream_seed(1, cell.key)))) for cell in design.cells(seeds, smoke)]


def run(final: float, steps: int, collapse_at: int | None = None, cosine: float = 0.1) -> dict[str, Any]:
    """Curves of a run that rises linearly to `final`, or falls to 0 at `collapse_at`."""
    reward = [START + (max(final, START) - START) * t / steps for t in range(steps)]
    if collapse_at is not None:
        reward = [r if t < collapse_at else 0.0 for t, r in enumerate(reward)]
    return {
        "reward": reward,
        "gradient_norm": [1.0] * steps,
        "entropy": [1.0] * steps,
        "clip_share": [0.0] * steps,
        "lag_kl": [0.0] * steps,
        "cosine": [None, *[cosine] * (steps - 1)],
        "update_norm": [0.1] * steps,
        "lag_distance": [0.1] * steps,
        "drift": [0.1 * (t + 1) for t in range(steps)],
        "evaluations": [[0, START], [steps // 2, final], [steps, final]],
        "control": {"regimes": {"safe": 0.5, "projected": 0.5}, "longest_skips": 0, "decisions": []},
        "broke": None,
    }
