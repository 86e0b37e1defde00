"""Results laid out by seed, so that seeds are what is resampled, and the edges of a (S, eta) grid.

*Seeds are units*: every interval here comes from drawing whole seeds with replacement; cells of one seed share their
prompts and stay together. Edges of the stable region: by *collapse* (the declared criterion, in at most one third of
the seeds) and by *gain* (the rate beyond which less than a wanted gain is left). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

from offbeat.eventtime.streams import stream_seed
from offbeat.studies.cell import Cell
from offbeat.theory.collapse import collapse, onset
from offbeat.theory.fits import Interval, bootstrap
from offbeat.theory.refresh import lag_at

T = TypeVar("T")
Point = tuple[int, float]
"""Staleness and learning rate."""
MOST_COLLAPSED = 1 / 3
LAST = 2
"""Evaluations at the end whose mean is a run's final exact match."""


class Trained:
    """One trained cell, judged."""

    def __init__(self, cell: Cell, values: dict[str, Any]) -> None:
        self.cell, self.values = cell, values
        exams = values["evaluations"]
        broke = values["broke"]
        self.start = float(exams[0][1])
        self.final = fmean(score for _, score in exams[-LAST:]) if broke is None else 0.0
        judged = collapse(values["reward"], values["gradient_norm"], values["entropy"])
        self.collapse = judged
        self.collapse_step = judged.step if judged.step is not None else broke
        self.collapse_time = self._collapse_time(broke)

    def _collapse_time(self, broke: int | None) -> int | None:
        """T_c, the version whose samples show the collapse first, at least 1; None where there was none. Rewards of a
        step are those of a version as old as its lag."""
        if self.collapse.step is None:
            return None if broke is None else max(1, broke)
        began = onset(self.values["reward"], self.collapse.step)
        return max(1, began - lag_at(began, self.cell.staleness, self.cell.refresh))

    @property
    def gain(self) -> float:
        """Final less first expected exact match on held-out prompts."""
        return self.final - self.start

    def cosine(self) -> float | None:
        """Mean lag-1 cosine of raw gradients, up to the collapse where there is one."""
        known = [c for c in self.values["cosine"][: self.collapse_time] if c is not None]
        return fmean(known) if known else None


Sample = Sequence[dict[Any, Trained]]
"""Drawn seeds: what each has, by arm, staleness and rate."""


def seeds_of(results: Sequence[tuple[Cell, dict[str, Any]]]) -> list[dict[tuple[str, int, float], Trained]]:
    """One dictionary a seed: (arm, staleness, rate) to its trained cell."""
    found: dict[int, dict[tuple[str, int, float], Trained]] = {}
    for cell, values in results:
        found.setdefault(cell.seed, {})[cell.arm, cell.staleness, cell.learning_rate] = Trained(cell, values)
    return [found[seed] for seed in sorted(found)]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic of all seeds with its 95 % interval over them; both None where it cannot be computed, the interval
    where there is one seed only."""

    value: float | None
    interval: Interval | None

    def shown(self, form: str = ".3g") -> str:
        """For people: value [low, high]."""
        if self.value is None:
            return "not on the grid"
        if self.interval is None:
            return f"{self.value:{form}} (one seed)"
        return f"{self.value:{form}} [{self.interval.low:{form}}, {self.interval.high:{form}}]"

    def to_json(self) -> dict[str, Any]:
        return {"value": self.value, "interval": list(self.interval) if self.interval else None}

    @property
    def is_positive(self) -> bool:
        """Known, and its whole interval above 0."""
        return self.interval is not None and self.interval.low > 0


def estimate(units: Sequence[T], statistic: Callable[[Sequence[T]], float], name: str) -> Estimate:
    """Of independent units, nearly always seeds. `name` is the stream the resamples are drawn from."""
    try:
        value = statistic(units)
        return Estimate(value, bootstrap(units, statistic, stream_seed(0, name)) if len(units) > 1 else None)
    except ValueError:
        return Estimate(None, None)


def rates_at(seeds: Sample, arm: str, staleness: int) -> list[float]:
    """The learning rates, ascending, at which an arm was run at this staleness; not every staleness has the same."""
    return sorted(rate for name, s, rate in seeds[0] if (name, s) == (arm, staleness))


def collapse_edge(seeds: Sample, arm: str, staleness: int) -> float:
    """The largest rate of the grid up to which at most a third of the seeds collapsed. ValueError where the smallest
    rate collapses, or none does: then the edge is not on the grid."""
    edge, rates = None, rates_at(seeds, arm, staleness)
    for rate in rates:
        fell = fmean(seed[arm, staleness, rate].collapse_step is not None for seed in seeds)
        if fell > MOST_COLLAPSED:
            break
        edge = rate
    if edge is None or edge == rates[-1]:
        raise ValueError(f"S = {staleness}: the edge is not on the grid")
    return edge


def mean_gain(seeds: Sample, arm: str, staleness: int, rate: float) -> float:
    return fmean(seed[arm, staleness, rate].gain for seed in seeds)


def gain_edge(seeds: Sample, arm: str, staleness: int, wanted: float) -> float:
    """The rate above which the gain stays under `wanted`, between grid points linear in log rate. ValueError where it
    is not on the grid."""
    ranked = rates_at(seeds, arm, staleness)
    gains = [mean_gain(seeds, arm, staleness, rate) for rate in ranked]
    above = [i for i, gain in enumerate(gains) if gain >= wanted]
    if not above or above[-1] == len(ranked) - 1:
        raise ValueError(f"S = {staleness}: the edge is not on the grid")
    i = above[-1]
    share = (gains[i] - wanted) / (gains[i] - gains[i + 1])
    return math.exp(math.log(ranked[i]) + share * math.log(ranked[i + 1] / ranked[i]))
