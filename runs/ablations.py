"""What the parts of multi-version streaming are worth: the ablations that DORA (arXiv 2604.26256) did not publish.

On the preset dora-128, one part at a time, each beside the default of the same run: orchestrator or static lanes, load
in requests or in tokens still to come (an oracle), drain or evict, moving keys and values or computing them again over
slower and slower links, versions a lane may hold, K, and a tail that is longer and longer.

    python runs/ablations.py [--iterations 14] [--preset dora-128] [--smoke] [--only k]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from offbeat.flow.partition import partition
from offbeat.flow.scheduler import Scheduler
from offbeat.flow.schedules.multi_version import MultiVersion
from offbeat.loop import run
from offbeat.sim.cluster import Cluster, changed, load_cluster
from offbeat.sim.measures import Measures
from offbeat.sim.simulate import NoJournal, simulate
from offbeat.sim.world import SimWorld

Result = Mapping[str, Any]


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


def by_tokens(cluster: Cluster) -> Result:
    world = SimWorld(cluster, "multi-version")
    measures = Measures(cluster, world, "multi-version")
    scheduler = Scheduler(cluster.plan("multi-version"))
    scheduler.schedule = TokenLoad(world)
    run(world, scheduler, NoJournal(), [measures.saw])
    return measures.result()


def plain(cluster: Cluster, schedule: str = "multi-version") -> Result:
    return simulate(cluster, schedule).result


def say(part: str, variant: str, result: Result) -> None:
    print(
        f"{part:14} {variant:24} {result['step_minutes']:8.2f} {result['rollout_only_minutes']:8.2f}"
        f" {result['trajectories_per_second']:9.2f} {result['slots_busy']:6.3f} {result['staleness_mean']:6.2f}"
        f" {result['length_trained']:8.0f} {result['evicted_groups']:6d} {result['moved_bytes'] / 1e9:9.0f}",
        flush=True,
    )


def orchestrator(c: Cluster) -> None:
    say("orchestrator", "default", plain(c))
    say("orchestrator", "static: nothing moves", plain(changed(c, schedule={"migration": "off"})))
    say("orchestrator", "no legacy fill", plain(changed(c, schedule={"legacy_fill": False})))
    say("orchestrator", "load in tokens (oracle)", by_tokens(c))
    say("orchestrator", "4 versions a lane", plain(changed(c, schedule={"max_versions": 4})))
    say("orchestrator", "repack", plain(c, "repack"))


def at_bound(c: Cluster) -> None:
    for k in (1, 3):
        for policy in ("drain", "evict"):
            schedule = {"max_staleness": k, "at_bound": policy, "over_dispatch": min(float(k), 1.2)}
            say("at the bound", f"K = {k}, {policy}", plain(changed(c, schedule=schedule)))


def transfer(c: Cluster) -> None:
    say("transfer", "computed again", plain(changed(c, schedule={"migration": "prefill"})))
    for rate in (50.0, 5.0, 0.5, 0.05):
        say("transfer", f"moved at {rate} GB/s", plain(changed(c, transfer={"gigabytes_per_second": rate})))


def bound(c: Cluster) -> None:
    for k in (1, 2, 3, 4, 6, 8):
        steady = {"iterations": c.run.iterations + 2 * k, "warmup": c.run.warmup + k}
        about = changed(c, schedule={"max_staleness": k, "over_dispatch": float(k)}, run=steady)
        say("K", f"K = {k}, all that fits", plain(about))


def tail(c: Cluster) -> None:
    for factor in (1, 2, 4):
        for k in (1, 3):
            longer = {"cap": factor * c.lengths.cap}
            schedule = {"max_staleness": k, "over_dispatch": min(float(k), 1.2)}
            say("tail", f"cap x {factor}, K = {k}", plain(changed(c, lengths=longer, schedule=schedule)))


PARTS = {"orchestrator": orchestrator, "bound": at_bound, "transfer": transfer, "k": bound, "tail": tail}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=14)
    parser.add_argument("--preset", default="dora-128")
    parser.add_argument("--only", choices=sorted(PARTS))
    parser.add_argument("--smoke", action="store_true", help="batches of 128, to see that it runs")
    options = parser.parse_args()
    cluster = changed(load_cluster(options.preset), run={"iterations": options.iterations, "warmup": 4})
    if options.smoke:
        cluster = changed(cluster, schedule={"train_batch_size": 128}, run={"iterations": 8, "warmup": 2})
    print(
        "part           variant                     min/it   only m    traj/s  slots  stale   length evict.  moved GB"
    )
    for name, part in PARTS.items():
        if options.only in (None, name):
            part(cluster)


if __name__ == "__main__":
    main()
