"""Claim: whatever process of a run is killed, whenever, also twice in a row, while a version is written, published or a
response moves: after every kill the run goes on or is resumed, and its audit finds nothing lost or used twice (C2), one
version a response (C1), nothing too old (C3). Prints how long a lane and a resumed run took to generate again.

    python runs/fault_drill.py [--kills 200] [--seed 0] [--out out/drill] [--report drill.json]

After twenty kills each run is also frozen for longer than a lease, its main process and a lane, and the files of its
newest version are spoilt while it sleeps. Runs: one lane; two lanes in two processes, whose responses move; four lanes
in one; other schedules.
With the same --out and --report a drill that was cut off goes on with its next run.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from pathlib import Path
from statistics import median

from offbeat.testing.drill import Drill, blows
from offbeat.testing.subject import Subject

KILLS_A_RUN = 20
LEASE = 5
SMALL = (
    "learner.iterations=1000000", "rollout.slots=16", "schedule.group_size=4", "schedule.train_batch_size=16",
    "task.held_out=8", "run.evaluate_every=0", "learner.learning_rate=0.0001", "model.warm_start_target=0",
    "model.warm_start_max_steps=1", "run.tensorboard=false", f"run.lease_seconds={LEASE}",
)  # fmt: skip
TAIL = ("rollout.max_new_tokens=300", "rollout.context=360", "rollout.slots=8", "schedule.rebalance_seconds=0.5")
LAYOUTS: dict[str, tuple[str, ...]] = {
    "one lane": ("rollout.max_new_tokens=24",),
    "two processes": (*TAIL, "rollout.lanes=2", "schedule.max_versions=1"),
    "four lanes in a process": (*TAIL, "rollout.lanes=4", "rollout.lanes_per_process=4", "schedule.max_versions=1"),
    "in-flight": ("rollout.max_new_tokens=24", "schedule.name=in-flight"),
    "partial": ("rollout.max_new_tokens=24", "schedule.name=partial"),
}


def one_run(directory: Path, layout: str, kills: int, rng: random.Random) -> Drill:
    drill, subject = Drill(), Subject(directory, (*SMALL, *LAYOUTS[layout]))
    subject.begin()
    subject.wait_for(lambda: subject.version >= 2)
    for blow in blows(rng, moves="max_versions=1" in " ".join(LAYOUTS[layout])):
        if drill.total >= kills:
            break
        drill.strike(subject, blow, rng)
        print(f"  {drill.total:3} kills, version {subject.version}: {blow}", flush=True)
    drill.freeze_main(subject, LEASE + 2)
    drill.freeze_lane(subject)
    drill.spoil_newest(subject, rng)
    code, err = subject.end()
    assert code == 130, err
    found = subject.audit()
    drill.read_recoveries(subject)
    print(f"  {found.trajectories} trajectories, {found.conservation.quarantined} quarantined", flush=True)
    return drill


def merged(drills: list[dict]) -> dict:
    def counts(key: str) -> dict[str, int]:
        return {name: sum(d[key].get(name, 0) for d in drills) for d in drills for name in d[key]}

    def seconds(key: str) -> dict[str, float] | None:
        found = [x for d in drills for x in d.get(key, ())]
        return {"median": median(found), "max": max(found), "count": len(found)} if found else None

    return {
        "kills": counts("kills"),
        "kills_in_all": sum(counts("kills").values()),
        "moments": counts("moments"),
        "freezes": sum(d["freezes"] for d in drills),
        "versions_made_anew": sum(d["rebuilt"] for d in drills),
        "audits_clean": sum(d["audits"] for d in drills),
        "resume_seconds": seconds("resume_seconds"),
        "ready_seconds": seconds("ready_seconds"),
        "lane_seconds": seconds("lane_seconds"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/drill"))
    parser.add_argument("--report", type=Path, default=Path("out/drill.json"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    done: list[dict] = json.loads(options.report.read_text()) if options.report.exists() else []
    while (total := sum(sum(d["kills"].values()) for d in done)) < options.kills:
        number = len(done)
        layout = list(LAYOUTS)[number % len(LAYOUTS)]
        directory = options.out / f"run-{number}"
        shutil.rmtree(directory, ignore_errors=True)
        print(f"run {number}, {layout}; {total} kills so far", flush=True)
        began = time.monotonic()
        rng = random.Random(f"{options.seed}/{number}")
        drill = one_run(directory, layout, min(KILLS_A_RUN, options.kills - total), rng)
        done.append(vars(drill) | {"layout": layout, "seconds": time.monotonic() - began})
        options.report.write_text(json.dumps(done, indent=1))
        shutil.rmtree(directory)
    print(json.dumps(merged(done), indent=1))


if __name__ == "__main__":
    main()
