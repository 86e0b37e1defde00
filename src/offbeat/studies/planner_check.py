"""Is the planner right? One pilot of a study's grid, at a safe setting, against the edges that the grid has elsewhere.

*Declared*: the pilot is the cell at S = 2 and the lowest rate; the planner is right where its eta_max is within a
factor of 2 of the measured edge at each of S = 4, 8 and 16. The pilot's numbers are those of its curves. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from offbeat.studies.grid import Sample, Trained, estimate, rates_at
from offbeat.theory.fits import median
from offbeat.theory.pilot import PilotStep
from offbeat.theory.pilot import estimate as estimate_pilot
from offbeat.theory.planner import plan

PILOT_STALENESS = 2
PLANNED = (4, 8, 16)
FACTOR = 2.0


class Edge(Protocol):
    """The measured edge of some seeds at a staleness. ValueError where it is not on the grid."""

    def __call__(self, sample: Sample, *, staleness: int) -> float: ...


def pilot_steps(run: Trained) -> list[PilotStep]:
    """The steps of a trained cell, as a planner sees those of a live run."""
    values, rate = run.values, run.cell.learning_rate
    columns = (values["update_norm"], values["lag_distance"], values["lag_kl"], values["drift"], values["reward"])
    return [
        PilotStep(rate, update, lag, math.sqrt(2 * max(0.0, kl)), drift, reward)
        for update, lag, kl, drift, reward in zip(*columns, strict=False)
    ]


def predictions(run: Trained) -> dict[int, float]:
    """eta_max by staleness for runs of the pilot's length. ValueError where the pilot cannot say."""
    found = estimate_pilot(pilot_steps(run), run.cell.edge_level, resamples=20)
    return {s: plan(found, s, run.cell.steps).eta_max for s in PLANNED}


def check(seeds: Sample, arm: str, edge: Edge, name: str) -> tuple[dict[str, Any], str]:
    """Predicted over measured edge at each planned staleness, and the verdict."""
    lowest = min(rates_at(seeds, arm, PILOT_STALENESS), default=0.0)
    try:
        units = [(seed, predictions(seed[arm, PILOT_STALENESS, lowest])) for seed in seeds]
    except (KeyError, ValueError) as error:
        return {}, f"Planner against the {name} edge: the pilot cannot be planned from ({error})."

    def ratio(sample: Sequence[Any], staleness: int) -> float:
        return median([found[staleness] for _, found in sample]) / edge(
            [seed for seed, _ in sample], staleness=staleness
        )

    ratios = {
        s: estimate(units, partial(ratio, staleness=s), f"planner {name} {s}")
        for s in PLANNED
        if rates_at(seeds, arm, s)
    }
    known = [found.value for found in ratios.values() if found.value is not None]
    words = ", ".join(f"S = {s}: {pair.shown('.2f')}" for s, pair in ratios.items())
    if len(known) < len(PLANNED):
        verdict = f"Planner against the {name} edge: not all edges are on the grid; predicted over measured {words}."
    else:
        right = all(1 / FACTOR <= value <= FACTOR for value in known)
        verdict = (
            f"Planner against the {name} edge, from a pilot at S = {PILOT_STALENESS}, η = {lowest:g}:"
            f" {'within' if right else 'not within'} a factor of {FACTOR:g}; predicted over measured {words}."
        )
    return {str(s): pair.to_json() for s, pair in ratios.items()}, verdict
