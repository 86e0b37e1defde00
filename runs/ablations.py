"""What the parts of multi-version streaming are worth: the ablations that DORA (arXiv 2604.26256) did not publish.

On a preset, one part at a time over several seeds: orchestrator or static lanes, fewest moves or any, load in requests
or in tokens still to come (an oracle), drain or evict, keys and values moved or computed again, K, longer tails, legacy
fill. Each figure is a mean over seeds with its 95 % interval (Student); `over` is the mean of the paired ratios of
trajectories a second to the first row of its case. `--scale 8`: each response stands for eight, so batches are one
eighth and a sequence costs eight times as much (decoding, keys and values): the same run with less company, sooner.

    python runs/ablations.py --rows out/ablations.jsonl [--seeds 5] [--scale 8] [--iterations 20] [--only k] [--smoke]

What `--rows` holds already is not simulated again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple
from unittest.mock import patch

from offbeat.flow.partition import partition
from offbeat.flow.scheduler import Scheduler
from offbeat.flow.schedules.multi_version import MultiVersion
from offbeat.loop import run
from offbeat.sim.cluster import Cluster, changed, load_cluster
from offbeat.sim.kept import Kept
from offbeat.sim.measures import Measures
from offbeat.sim.simulate import NoJournal, simulate
from offbeat.sim.world import SimWorld

Result = Mapping[str, Any]
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""97.5 % quantiles for 1, 2, ... degrees of freedom."""
COLUMNS = (
    ("min/it", "step_minutes", "{:.2f}"),
    ("rollout only", "rollout_only_minutes", "{:.2f}"),
    ("slots", "slots_busy", "{:.3f}"),
    ("stale", "staleness_mean", "{:.2f}"),
    ("length", "length_trained", "{:.0f}"),
    ("evicted", "evicted_groups", "{:.0f}"),
    ("moved TB", "moved_terabytes", "{:.1f}"),
)


class Variant(NamedTuple):
    """A row: what of the cluster is another than in the preset, under which schedule, decided how."""

    case: str
    name: str
    values: dict[str, Any] = {}
    schedule: str = "multi-version"
    how: str = "as it ships"


class TokenLoad(MultiVersion):
    """Lanes in proportion to the tokens still to come of each version, which only a simulator knows."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world

    def share(self, load: dict[int, int], newest: int, lanes: int, room: int, floor: dict[int, int]) -> dict[int, int]:
        left: dict[int, float] = {}
        count: dict[int, int] = {}
        for lane in self.world.lanes:
            for response in lane.running.values():
                left[response.version] = left.get(response.version, 0.0) + response.end - lane.clock
                count[response.version] = count.get(response.version, 0) + 1
        fresh = self.world.cluster.lengths.median
        tokens = {v: max(1, round(n * (left[v] / count[v] if v in count else fresh))) for v, n in load.items()}
        return partition(lanes * room, lanes, tokens, floor)


def anywhere(want: Mapping[int, int], using: Mapping[int, Mapping[int, int]], room: int) -> dict[int, set[int]]:
    """`flow.partition.keepers` without a thought of what runs where: versions are dealt to lanes in order."""
    deal = [version for version in sorted(want) for _ in range(want[version])]
    held: dict[int, set[int]] = {lane: set() for lane in using}
    for i, version in enumerate(deal):
        lanes = sorted(held)
        held[lanes[i % len(lanes)]].add(version)
    return held


def result(cluster: Cluster, variant: Variant) -> dict[str, Any]:
    if variant.how == "as it ships":
        found = dict(simulate(cluster, variant.schedule).result)
    else:
        world = SimWorld(cluster, variant.schedule)
        measures = Measures(cluster, world, variant.schedule)
        scheduler = Scheduler(cluster.plan(variant.schedule))
        if variant.how == "tokens":
            scheduler.schedule = TokenLoad(world)
            run(world, scheduler, NoJournal(), [measures.saw])
        else:
            with patch("offbeat.flow.moves.keepers", anywhere):
                run(world, scheduler, NoJournal(), [measures.saw])
        found = dict(measures.result())
    return found | {"moved_terabytes": found["moved_bytes"] / 1e12 / found["iterations_counted"]}


# -- the parts -------------------------------------------------------------------------------------------------


def orchestrator(c: Cluster) -> Iterator[Variant]:
    few = max(c.schedule.group_size, c.lane_slots("multi-version") // 8)
    for case, values in (("slots ample", {}), ("slots / 8", {"slots": few})):
        yield Variant(case, "orchestrator", values)
        yield Variant(case, "static: nothing moves", values | {"schedule": {"migration": "off"}})
        yield Variant(case, "versions dealt, not kept", values, how="anywhere")
        yield Variant(case, "load in tokens (oracle)", values, how="tokens")
        yield Variant(case, "4 versions a lane", values | {"schedule": {"max_versions": 4}})
        yield Variant(case, "repack", values, schedule="repack")


def legacy(c: Cluster) -> Iterator[Variant]:
    each = c.lane_slots("multi-version")
    iteration = c.training.seconds(c.learner_accelerators("multi-version"), 0, 1)
    for case, values in (
        ("preset", {}),
        ("K = 1", {"schedule": {"max_staleness": 1}}),
        ("K = 2", {"schedule": {"max_staleness": 2}}),
        ("an eighth of the slots", {"slots": max(c.schedule.group_size, each // 8)}),
        ("twice the slots", {"slots": 2 * each}),
        ("static", {"schedule": {"migration": "off"}}),
        ("static, slots / 8", {"schedule": {"migration": "off"}, "slots": max(c.schedule.group_size, each // 8)}),
        ("publish T / 4", {"publish": {"kind": "broadcast", "setup_seconds": iteration / 4}}),
        ("4 versions a lane", {"schedule": {"max_versions": 4}}),
    ):
        for name, fill in (("no legacy fill", False), ("legacy fill", True)):
            schedule = {**values.get("schedule", {}), "legacy_fill": fill}  # type: ignore[dict-item]
            yield Variant(case, name, values | {"schedule": schedule})


def at_bound(c: Cluster) -> Iterator[Variant]:
    for k in (1, 2, 3):
        for policy in ("drain", "evict"):
            schedule = {"max_staleness": k, "at_bound": policy, "over_dispatch": min(float(k), 1.2)}
            yield Variant(f"K = {k}", policy, {"schedule": schedule})


def transfer(c: Cluster) -> Iterator[Variant]:
    """Bandwidth a token needs for moving to take as long as computing: bytes * rate of prefill * accelerators."""
    for longer in (1, 4):
        for size in (1.0, 0.25):
            lengths = {"median": c.lengths.median * longer, "cap": c.lengths.cap * longer}
            bytes_ = c.transfer.bytes_per_token * size
            case = f"tokens x {longer}, bytes x {size:g}"
            yield Variant(case, "computed again", {"schedule": {"migration": "prefill"}, "lengths": lengths})
            for rate in (50.0, 5.0, 0.5, 0.05):
                moving = {"bytes_per_token": bytes_, "gigabytes_per_second": rate}
                yield Variant(case, f"moved at {rate} GB/s", {"transfer": moving, "lengths": lengths})


def bound(c: Cluster) -> Iterator[Variant]:
    for k in (1, 2, 3, 4, 6, 8):
        steady = {"iterations": c.run.iterations + 2 * k, "warmup": c.run.warmup + k}
        yield Variant("RBS / TBS = 2", f"K = {k}", {"schedule": {"max_staleness": k}})
        schedule = {"max_staleness": k, "over_dispatch": float(k)}
        yield Variant("all that fits", f"K = {k}", {"schedule": schedule, "run": steady})


def tail(c: Cluster) -> Iterator[Variant]:
    for k in (1, 3):
        for factor in (1, 2, 4):
            for policy in ("drain", "evict"):
                schedule = {"max_staleness": k, "over_dispatch": min(float(k), 1.2), "at_bound": policy}
                values = {"lengths": {"cap": factor * c.lengths.cap}, "schedule": schedule}
                yield Variant(f"K = {k}", f"cap x {factor}, {policy}", values)


PARTS = {
    "orchestrator": orchestrator, "legacy": legacy, "bound": at_bound, "transfer": transfer, "k": bound, "tail": tail,
}  # fmt: skip


# -- running and telling ---------------------------------------------------------------------------------------


def scaled(c: Cluster, by: int) -> Cluster:
    return changed(
        c,
        schedule={"train_batch_size": c.schedule.train_batch_size // by},
        decode={"per_sequence_seconds": by * c.decode.per_sequence_seconds, "knee": c.decode.knee / by},
        prefill={"tokens_per_second": c.prefill.tokens_per_second / by},
        transfer={"bytes_per_token": by * c.transfer.bytes_per_token},
        slots=None if c.slots is None else max(c.schedule.group_size, c.slots // by),
    )


def mean(values: list[float], form: str = "{:.2f}") -> str:
    """The mean and half the width of its 95 % interval."""
    if len(values) < 2:
        return form.format(fmean(values))
    student = STUDENT[len(values) - 2] if len(values) - 2 < len(STUDENT) else 1.96
    half = student * stdev(values) / sqrt(len(values))
    return f"{form.format(fmean(values))} ±{form.format(half)}"


def tell(part: str, variant: Variant, found: list[Result], first: list[Result]) -> None:
    ratios = [a["trajectories_per_second"] / b["trajectories_per_second"] for a, b in zip(found, first, strict=True)]
    cells = [mean([float(r[key]) for r in found], form) for _, key, form in COLUMNS]
    print(f"{part:13} {variant.case:24} {variant.name:26} {mean(ratios, '{:.3f}'):>14}", end="")
    print("".join(f"{cell:>15}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--preset", default="dora-128")
    parser.add_argument("--rows", type=Path, help="JSON lines: what is there already is not simulated again")
    parser.add_argument("--only", choices=sorted(PARTS), action="append")
    parser.add_argument("--case", help="only the cases of a part whose names begin so")
    parser.add_argument("--smoke", action="store_true", help="batches of 128 and one seed, to see that it runs")
    options = parser.parse_args()
    base = changed(load_cluster(options.preset), schedule={"legacy_fill": False})
    base = changed(scaled(base, options.scale), run={"iterations": options.iterations, "warmup": 6})
    if options.smoke:
        base = changed(base, schedule={"train_batch_size": 128}, run={"iterations": 9, "warmup": 2})
    kept = Kept(options.rows)
    print(f"{'part':13} {'case':24} {'variant':26} {'over':>14}" + "".join(f"{name:>15}" for name, _, _ in COLUMNS))
    for part in options.only or PARTS:
        firsts: dict[str, list[Result]] = {}
        for variant in PARTS[part](base):
            if not variant.case.startswith(options.case or ""):
                continue
            found = []
            for seed in range(1 if options.smoke else options.seeds):
                values = variant.values | {"run": variant.values.get("run", {}) | {"seed": seed}}
                about = changed(base, **values)
                key = f"{variant.schedule}, {variant.how}"
                found.append(kept.result(about, key, lambda about=about: result(about, variant)))  # type: ignore[misc]  # noqa: B023
            tell(part, variant, found, firsts.setdefault(variant.case, found))


if __name__ == "__main__":
    main()
