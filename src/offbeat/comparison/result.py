"""All runs of a comparison brought together: medians over repeats, intervals, and ratios within each repeat.

*Paired rule*: a ratio compares two runs of the same repeat, and the ratio shown is the median of those. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from offbeat.comparison.contestants import Contestant, Split
from offbeat.comparison.measures import Measures, reward_at

SCALARS = tuple(f.name for f in fields(Measures) if f.name not in {"rewards", "ends", "datasets"})


@dataclass(frozen=True)
class Entry:
    """One schedule with its fastest split: measures by repeat."""

    schedule: str
    split: Split
    by_repeat: tuple[Measures, ...]

    def median(self, name: str) -> float:
        return float(median(getattr(measures, name) for measures in self.by_repeat))

    def interval(self, name: str) -> tuple[float, float]:
        """Least and most over the repeats."""
        values = [getattr(measures, name) for measures in self.by_repeat]
        return min(values), max(values)


def entries(measured: Mapping[Contestant, Measures]) -> list[Entry]:
    """One entry a schedule, in the order given; of several splits the one with more trajectories a second."""
    found: dict[str, dict[Split, list[Measures]]] = {}
    for contestant, measures in measured.items():
        found.setdefault(contestant.schedule, {}).setdefault(contestant.split, []).append(measures)
    chosen = []
    for schedule, by_split in found.items():
        tried = [Entry(schedule, split, tuple(each)) for split, each in by_split.items()]
        chosen.append(max(tried, key=lambda entry: entry.median("trajectories_per_second")))
    return chosen


def speedup(entry: Entry, other: Entry) -> float:
    """Median over repeats of trajectories a second, `entry` / `other`."""
    pairs = zip(entry.by_repeat, other.by_repeat, strict=True)
    return float(median(a.trajectories_per_second / b.trajectories_per_second for a, b in pairs))


def equal_wall_clock(found: list[Entry]) -> dict[str, float | None]:
    """Reward of each schedule when the quickest one was done, median over repeats."""
    rewards: dict[str, float | None] = {}
    for entry in found:
        values = []
        for repeat, measures in enumerate(entry.by_repeat):
            seconds = min(other.by_repeat[repeat].ends[-1] for other in found)
            values.append(reward_at(measures, seconds))
        known = [value for value in values if value is not None]
        rewards[entry.schedule] = float(median(known)) if len(known) == len(values) else None
    return rewards


def to_json(found: list[Entry], measured: Mapping[Contestant, Measures]) -> dict[str, Any]:
    """What `offbeat compare --json` prints, the page's path aside."""
    walls = equal_wall_clock(found)
    return {
        "schedules": {
            entry.schedule: {name: entry.median(name) for name in SCALARS}
            | {
                "threads": entry.split.threads,
                "lanes_split_in": entry.split.parts,
                "datasets": [{name: asdict(p) for name, p in m.datasets.items()} for m in entry.by_repeat],
                "intervals": {name: list(entry.interval(name)) for name in SCALARS},
                "reward_at_equal_wall_clock": walls[entry.schedule],
                "speedup": {other.schedule: speedup(entry, other) for other in found if other is not entry},
            }
            for entry in found
        },
        "splits": {c.name: m.trajectories_per_second for c, m in measured.items()},
    }
