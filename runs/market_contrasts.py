"""Claims R11, R12 in numbers: how cells of finished market studies differ, seed by seed, and where critics diverge.

Reads what `runs/market_learners.py` or `offbeat market sweep` left and trains nothing. *Differences are paired: only
seeds that both cells have, and never a run that has not ended.* Gains are those of noise-free policies, last tenth of
the windows; intervals are `offbeat.market.estimate`'s. It does not know what a study was meant to show.

python runs/market_contrasts.py out/learners/headline-* [--than out/learners/headline-0]

A DIRECTORY is one run or sweep, or a folder of them. Without `--than`: cells less the synchronous one (common clock,
all else alike; at the same latency or, where there is none, at latency 0), less no latency, less the lowest rate,
slopes along latency and 1 - exp(-latency); counts of divergence by rate with Fisher's exact p and an exact trend.
With `--than DIRECTORY`: every cell less the one of equal clock, rate and latency there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import comb
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offbeat.market.estimate import Estimate, estimate
from offbeat.market.learners.runfile import read_market_run

Array = NDArray[np.float64]
SCALES: dict[str, Callable[[Array], Array]] = {
    "latency": lambda lag: lag,
    "1 - exp(-latency)": lambda lag: -np.expm1(-lag),
}


@dataclass(frozen=True)
class Cell:
    """One cell of one directory. `alike`: every setting but clock, rates, latencies and parts. `peaks`: largest |Q| of
    its runs over its bound, None without one. By seed: `gains`, and in `diverged` those whose critics broke the bound.
    """

    directory: str
    alike: str
    clock: str
    rate: float
    latency: float
    gains: dict[int, float]
    diverged: frozenset[int]
    peaks: Array | None

    def __str__(self) -> str:
        return f"{self.directory} {self.clock} rate {self.rate:g} latency {self.latency:g}"


@dataclass(frozen=True)
class Contrast:
    """`every`: over all seeds; `kept`: over those no cell of the contrast diverged in, None where that is all."""

    name: str
    every: Estimate
    kept: Estimate | None

    def __str__(self) -> str:
        kept = "" if self.kept is None else f"; without the diverged {self.kept} ({self.kept.count})"
        return f"{self.name:90} {self.every} ({self.every.count}){kept}"


@dataclass(frozen=True)
class Count:
    """Diverged runs of a cell, its `peaks`, and Fisher's exact p, two-sided, against the cell at the lowest rate, None
    where it is that cell.
    """

    name: str
    diverged: int
    runs: int
    peaks: Array | None
    p: float | None

    def __str__(self) -> str:
        peaks = "no bound" if self.peaks is None else f"{self.peaks.mean():.3g}, at most {self.peaks.max():.3g}"
        against = "" if self.p is None else f", p = {self.p:.2g}"
        return f"{self.name:90} {self.diverged} of {self.runs}{against}; |Q| / bound {peaks}"


@dataclass(frozen=True)
class Rise:
    """Diverged runs along ascending rates; `p`: whether they rise or fall, exact, two-sided, with ranks as scores."""

    name: str
    diverged: list[int]
    p: float

    def __str__(self) -> str:
        return f"{self.name:90} {', '.join(map(str, self.diverged))}: trend p = {self.p:.2g}"


def directories(given: list[Path]) -> list[Path]:
    """The runs and sweeps in what is given, each once. Raises SystemExit where there is none."""
    found: list[Path] = []
    for path in given:
        inside = [path] if (path / "run.json").exists() else sorted(file.parent for file in path.glob("*/run.json"))
        if not inside:
            raise SystemExit(f"{path}: no market run here nor one level below")
        found += inside
    return list({path.resolve(): path for path in found}.values())


def cells(directory: Path) -> list[Cell]:
    """Cells of a finished run or sweep. Raises SystemExit where it has not ended."""
    run = read_market_run(directory)
    if run.status != "finished":
        raise SystemExit(f"{directory}: {run.done} of {run.study.run.windows} windows; no contrast of unfinished runs")
    settings = run.study.model_dump(mode="json", exclude={"market": {"clock", "rates", "latencies"}, "run": {"parts"}})
    alike = json.dumps(settings, sort_keys=True)
    gains, broken, peaks = run.gains(), run.diverged, run.critic_peaks
    found = []
    for cell, (rate, latency) in enumerate(run.study.cells):
        mine = [(seed, k) for k, (of, seed) in enumerate(run.study.runs) if of == cell]
        known = {seed: float(gains[k]) for seed, k in mine}
        gone = frozenset(seed for seed, k in mine if broken[k])
        worst = None if run.bounds[cell] is None else peaks[[k for _, k in mine]]
        found.append(Cell(str(directory), alike, run.study.market.clock, rate, latency, known, gone, worst))
    return found


def weighed(name: str, several: list[Cell], weights: Array) -> Contrast:
    """The weighted sum of the cells' gains, seed by seed, over the seeds they share."""
    seeds = sorted(set.intersection(*(set(cell.gains) for cell in several)))
    values = weights @ np.array([[cell.gains[seed] for seed in seeds] for cell in several])
    gone = frozenset[int]().union(*(cell.diverged for cell in several))
    stay = np.array([seed not in gone for seed in seeds], dtype=bool)
    return Contrast(name, estimate(values), None if stay.all() else estimate(values[stay]))


def less(one: Cell, other: Cell) -> Contrast:
    """`one` less `other`."""
    name = str(other).removeprefix(f"{one.directory} {one.clock} ")
    return weighed(f"{one} less {name}", [one, other], np.array([1.0, -1.0]))


def less_synchronous(every: list[Cell]) -> Iterator[Contrast]:
    """Cells of all other clocks less the synchronous one, at the same latency where there is one, else at none."""
    for cell in every:
        same = [o for o in every if (o.alike, o.rate, o.clock) == (cell.alike, cell.rate, "common")]
        near = [o for o in same if o.latency == cell.latency] or [o for o in same if o.latency == 0]
        if cell.clock != "common" and near:
            yield less(cell, only(near))


def less_first(every: list[Cell], along: str) -> Iterator[Contrast]:
    """Within a directory: cells less the one without latency (`along` latency), or less the lowest rate (rate)."""
    other = {"latency": "rate", "rate": "latency"}[along]
    for _, group in grouped(every, other):
        ordered = sorted(group, key=lambda cell: float(getattr(cell, along)))
        if along == "rate" or ordered[0].latency == 0:
            yield from (less(cell, ordered[0]) for cell in ordered[1:])


def slopes(every: list[Cell]) -> Iterator[Contrast]:
    """Least-squares slopes of the gain over latencies, seed by seed: at every rate, and their mean over rates."""
    for directory, group in groupby(every, lambda cell: cell.directory):
        mine = list(group)
        lags = np.array(sorted({cell.latency for cell in mine}))
        rates = sorted({cell.rate for cell in mine})
        if len(lags) < 3:
            continue
        for scale, of in SCALES.items():
            centred = of(lags) - of(lags).mean()
            weights = centred / (centred**2).sum()
            rows = [[only([c for c in mine if (c.rate, c.latency) == (r, lag)]) for lag in lags] for r in rates]
            for rate, row in zip(rates, rows, strict=True):
                yield weighed(f"{directory} rate {rate:g}: slope along {scale}", row, weights)
            if len(rates) > 1:
                name = f"{directory} all rates: slope along {scale}"
                yield weighed(name, [cell for row in rows for cell in row], np.tile(weights / len(rates), len(rates)))


def counts(every: list[Cell]) -> Iterator[Count | Rise]:
    """Diverged runs by rate: each rate against the lowest, then the trend over three or more."""
    for (directory, clock, latency), group in grouped(every, "latency"):
        ordered = sorted(group, key=lambda cell: cell.rate)
        hits, of = [len(cell.diverged) for cell in ordered], [len(cell.gains) for cell in ordered]
        for cell, some, runs in zip(ordered, hits, of, strict=True):
            p = None if cell is ordered[0] else exact([hits[0], some], [of[0], runs])
            yield Count(str(cell), some, runs, cell.peaks, p)
        if len(ordered) > 2 and any(hits):
            yield Rise(f"{directory} {clock} latency {latency:g}", hits, exact(hits, of))


def exact(hits: list[int], of: list[int]) -> float:
    """The chance, with all margins given, of ranks of hits that sum to something no more likely than what they do.

    Two groups: Fisher's exact test. More: the exact Cochran-Armitage test with ranks as scores.
    """
    ways = {(0, 0): 1}  # of so many hits with such a sum, over the groups so far; whole numbers, so that ties are exact
    for rank, runs in enumerate(of):
        so_far, ways = ways, {}
        for (total, score), count in so_far.items():
            for k in range(runs + 1):
                key = total + k, score + rank * k
                ways[key] = ways.get(key, 0) + count * comb(runs, k)
    sums = {score: count for (total, score), count in ways.items() if total == sum(hits)}
    seen = sums[sum(rank * k for rank, k in enumerate(hits))]
    return sum(count for count in sums.values() if count <= seen) / sum(sums.values())


def grouped(every: list[Cell], level: str) -> Iterator[tuple[tuple[str, str, float], list[Cell]]]:
    """Cells of one directory, clock and `level` (rate or latency)."""

    def key(cell: Cell) -> tuple[str, str, float]:
        return cell.directory, cell.clock, float(getattr(cell, level))

    for name, group in groupby(sorted(every, key=key), key):
        yield name, list(group)


def only(found: list[Cell]) -> Cell:
    """The one cell there is. Raises SystemExit where there are more."""
    if len(found) != 1:
        raise SystemExit("more than one cell to compare with: " + "; ".join(map(str, found)))
    return found[0]


def told(every: list[Cell], than: list[Cell]) -> Iterator[tuple[str, Sequence[object]]]:
    """Title and lines of every section that has any."""
    if than:
        matched = [
            less(cell, only(same))
            for cell in every
            if (same := [o for o in than if (o.clock, o.rate, o.latency) == (cell.clock, cell.rate, cell.latency)])
        ]
        yield "less the same cell of another study", matched
        return
    yield "noise-free profit gain", [weighed(str(cell), [cell], np.ones(1)) for cell in every]
    yield "less synchronous", list(less_synchronous(every))
    yield "less no latency", list(less_first(every, "latency"))
    yield "less the lowest rate", list(less_first(every, "rate"))
    yield "slopes", list(slopes(every))
    yield "diverged runs, by rate (p against the lowest)", list(counts(every))


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path, nargs="+")
    parser.add_argument("--than", type=Path, help="a run or sweep: every cell less the same cell there")
    asked = parser.parse_args(words)
    every = [cell for directory in directories(asked.directory) for cell in cells(directory)]
    than = [] if asked.than is None else [cell for part in directories([asked.than]) for cell in cells(part)]
    print("mean [95 % over seeds] (seeds); differences and slopes are paired by seed")
    for title, lines in told(every, than):
        if lines:
            print(f"\n{title}", *lines, sep="\n")


if __name__ == "__main__":
    main()
