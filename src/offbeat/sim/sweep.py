"""One schedule on many variants of a cluster: the grid of some keys' values, and which point is best and why.

Best is most trajectories a second; of points within `EQUAL` of it, the one with least mean staleness.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

from offbeat.errors import SettingsError
from offbeat.sim.cluster import Cluster, cluster_from
from offbeat.sim.kept import Kept
from offbeat.sim.simulate import simulate

EQUAL = 0.01
DEFAULT = ("schedule.max_staleness=1,2,3,4", "schedule.over_dispatch=1.1,1.5,2", "learner_share=0.35,0.5,0.65")
"""What `--sweep all` means: K, RBS / TBS, the split."""


class Point(NamedTuple):
    """A variant (key -> value) and what came of it."""

    values: dict[str, Any]
    result: dict[str, Any]


def axes(texts: Sequence[str]) -> dict[str, list[Any]]:
    """`key=v1,v2,...` each, or `all`, which other axes change or add to. Raises SettingsError for anything else."""
    found = dict(_axis(text) for text in DEFAULT) if "all" in texts else {}
    given: set[str] = set()
    for text in texts:
        if text != "all":
            key, values = _axis(text)
            if key in given:
                raise SettingsError(f"--sweep {text}: {key} is swept twice; give all its values at once")
            given.add(key)
            found[key] = values
    return found


def _axis(text: str) -> tuple[str, list[Any]]:
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not values or not key:
        raise SettingsError(f"--sweep {text}: not of the form key=v1,v2; e.g. --sweep schedule.max_staleness=1,2,4")
    try:
        return key, tomllib.loads(f"values = [{values}]")["values"]
    except tomllib.TOMLDecodeError:
        return key, [value.strip() for value in values.split(",")]


def variants(cluster: Cluster, grid: dict[str, list[Any]]) -> list[tuple[dict[str, Any], Cluster]]:
    """Every point of the grid with its cluster. Raises SettingsError for the first that cannot work."""
    found = []
    for values in product(*grid.values()):
        data = cluster.model_dump()
        point = dict(zip(grid, values, strict=True))
        for key, value in point.items():
            node: Any = data
            for part in key.split(".")[:-1]:
                node = node.get(part)
                if not isinstance(node, dict):
                    raise SettingsError(f"--sweep {key}: {part} is no section; see the presets for the keys there are")
            node[key.rpartition(".")[2]] = value
        found.append((point, cluster_from(data)))
    return found


def sweep(
    cluster: Cluster,
    schedule: str,
    grid: dict[str, list[Any]],
    progress: Callable[[float, int], None],
    kept: Kept,
) -> list[Point]:
    """Simulate every variant that is not `kept`. `progress` hears how many are done, with fractions, of how many."""
    points: list[Point] = []
    todo = variants(cluster, grid)
    progress(0, len(todo))
    for values, variant in todo:

        def said(iterations: int, of: int = variant.run.iterations) -> None:
            progress(len(points) + iterations / of, len(todo))

        def result(variant: Cluster = variant, said: Callable[[int], None] = said) -> dict[str, Any]:
            return simulate(variant, schedule, said).result

        points.append(Point(values, kept.result(variant, schedule, result)))
        progress(len(points), len(todo))
    return points


def best(points: Sequence[Point]) -> tuple[Point, str]:
    """The point to choose, and in one sentence why."""
    most = max(points, key=lambda p: p.result["trajectories_per_second"])
    rate = most.result["trajectories_per_second"]
    near = [p for p in points if p.result["trajectories_per_second"] >= (1 - EQUAL) * rate]
    chosen = min(near, key=lambda p: (p.result["staleness_mean"], -p.result["trajectories_per_second"]))
    result = chosen.result
    idle, slots = result["learner_idle"], result["slots_busy"]
    if idle < 0.02:
        limit = f"the learner never waits (idle {idle:.1%}): only a faster one would gain anything"
    elif slots > 0.8:
        limit = f"rollout is the limit: its slots are {slots:.0%} busy while the learner is idle {idle:.0%} of the time"
    else:
        limit = (
            f"the learner waits {idle:.0%} of the time for long responses while slots are only {slots:.0%} busy: a"
            " larger bound, more in rollout or faster decoding would help, more lanes would not"
        )
    equal = f"; {len(near) - 1} other points are within {EQUAL:.0%} but staler" if len(near) > 1 else ""
    return chosen, f"most trajectories a second ({result['trajectories_per_second']:.3g}){equal}; {limit}"
