"""Claim: a run that goes on for long keeps its memory and its file descriptors: at most 2 % more after the warm-up.

    python runs/soak.py real [--minutes 30] [--out out/soak]     # a live run, every process of it watched
    python runs/soak.py simulated [--hours 24]                   # loop, scheduler and run log on a virtual clock

`real`: proportional set size of all processes together (shared pages counted once) and open descriptors, every two
seconds; the verdict compares the medians of the second and the last quarter. `simulated`: 2 lanes of 64 slots and a
learner of 60 s an iteration, responses of some 500 tokens; the process that decides is measured, its log on disk.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil

BAR = 0.02
EVERY = 2.0
COMING_UP_SECONDS = 120.0
WATCHED = {"main", "rollout", "learner", "scorer", "fork_server"}
RUN = ("learner.iterations=1000000", "learner.learning_rate=0.00001", "run.evaluate_every=200", "rollout.slots=32",
       "schedule.train_batch_size=64", "model.warm_start_target=0", "model.warm_start_max_steps=1")  # fmt: skip


def growth(values: Sequence[float]) -> float:
    """The median of the last quarter over that of the second, less one: the first quarter is warm-up."""
    quarter = len(values) // 4
    before, after = median(values[quarter : 2 * quarter]), median(values[-quarter:])
    return after / before - 1


def verdict(memory: Sequence[float], descriptors: Sequence[float], **more: object) -> dict[str, object]:
    found = {"memory": growth(memory), "descriptors": growth(descriptors)}
    return {
        "samples": len(memory),
        "memory_mib": {"second_quarter": round(median(memory[len(memory) // 4 : len(memory) // 2]) / 2**20, 1),
                       "last_quarter": round(median(memory[-(len(memory) // 4) :]) / 2**20, 1)},
        "growth": {name: round(value, 4) for name, value in found.items()},
        "holds": all(value <= BAR for value in found.values()),
    } | more  # fmt: skip


# -- a live run ------------------------------------------------------------------------------------------------


def real(minutes: float, out: Path) -> dict[str, object]:
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    sets = [part for override in RUN for part in ("--set", override)]
    with open(out.with_suffix(".err"), "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "offbeat.cli", "train", "--out", str(out), *sets], stdout=errors, stderr=errors
        )
    memory: list[float] = []
    descriptors: list[float] = []
    by_kind: dict[str, list[float]] = {}
    until = None
    while until is None or time.monotonic() < until:
        time.sleep(EVERY)
        if process.poll() is not None:
            raise SystemExit(f"the run ended too early; see {out.with_suffix('.err')}")
        if not (out / "run.sqlite").exists():
            continue
        until = until or time.monotonic() + 60 * minutes
        seen = family(process.pid)
        if seen.keys() >= WATCHED:
            memory.append(sum(size for size, _ in seen.values()))
            descriptors.append(sum(count for _, count in seen.values()))
            for kind, (size, _) in seen.items():
                by_kind.setdefault(kind, []).append(size)
        elif not memory and time.monotonic() > until - 60 * minutes + COMING_UP_SECONDS:
            process.kill()
            raise SystemExit(f"of {sorted(WATCHED)} only {sorted(seen)} are there after {COMING_UP_SECONDS:g} s")
    process.send_signal(signal.SIGINT)
    process.wait()
    told = subprocess.run(
        [sys.executable, "-m", "offbeat.cli", "verify", str(out), "--json"], capture_output=True, text=True
    )
    audited = json.loads(told.stdout)
    return verdict(
        memory,
        descriptors,
        minutes=minutes,
        trajectories=audited["trajectories"],
        verified=audited["ok"],
        growth_by_process={kind: round(growth(sizes), 4) for kind, sizes in by_kind.items()},
        log_mib=round((out / "run.sqlite").stat().st_size / 2**20, 1),
    )


def family(pid: int) -> dict[str, tuple[float, int]]:
    """Proportional set size in bytes and open descriptors of a main process and all that descend from it, by kind:
    `main`, `rollout`, `learner`, ..., the fork server that workers descend from, `other`."""
    found: dict[str, tuple[float, int]] = {}
    with suppress(psutil.Error):
        main = psutil.Process(pid)
        for process in (main, *main.children(recursive=True)):
            with suppress(psutil.Error):  # it is gone
                named = re.search(r"offbeat\.backends\.(\w+?)(?:_process)?\b", " ".join(process.cmdline()))
                kind = "main" if process.pid == pid else named[1] if named else "other"
                size, count = found.get(kind, (0.0, 0))
                found[kind] = size + process.memory_full_info().pss, count + process.num_fds()
    return found


# -- a simulated day -------------------------------------------------------------------------------------------


def simulated(hours: float) -> dict[str, object]:
    from offbeat.flow.scheduler import Scheduler
    from offbeat.live.runlog import RunLog
    from offbeat.loop import run
    from offbeat.sim.cluster import cluster_from
    from offbeat.sim.world import SimWorld

    cluster = cluster_from({
        "accelerators": 4, "slots": 64, "decode": {"floor_seconds": 0.03}, "training": {"fixed_seconds": 60.0},
        "lengths": {"kind": "lognormal", "median": 400, "sigma": 0.8, "cap": 4000, "prompt_tokens": 50},
        "faults": {"lane_hours": 6.0, "learner_hours": 12.0, "return_seconds": 60.0},
        "schedule": {"group_size": 8, "train_batch_size": 128, "max_staleness": 2},
        "run": {"iterations": 10_000_000, "warmup": 0, "seed": 0},
    })  # fmt: skip
    world = SimWorld(cluster, "multi-version")
    me = psutil.Process()
    memory: list[float] = []
    descriptors: list[float] = []
    took = [0.0]

    class Enough(Exception):
        pass

    def watch(event: object, now: float, commands: object) -> None:
        if now - took[0] >= hours * 3600 / 96:
            took[0] = now
            gc.collect()
            memory.append(me.memory_info().rss)
            descriptors.append(me.num_fds())
        if now > hours * 3600:
            raise Enough

    began = time.perf_counter()
    scheduler = Scheduler(cluster.plan("multi-version"))
    with tempfile.TemporaryDirectory() as scratch:
        log = RunLog.create(Path(scratch) / "run.sqlite", {})
        with suppress(Enough):
            run(world, scheduler, log, [watch])
        log.close()
        size = os.path.getsize(Path(scratch) / "run.sqlite")
    return verdict(
        memory,
        descriptors,
        hours=hours,
        iterations=scheduler.window.newest,
        events=world.events,
        log_mib=round(size / 2**20, 1),
        wall_seconds=round(time.perf_counter() - began, 1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    live = kinds.add_parser("real")
    live.add_argument("--minutes", type=float, default=30.0)
    live.add_argument("--out", type=Path, default=Path("out/soak"))
    kinds.add_parser("simulated").add_argument("--hours", type=float, default=24.0)
    options = parser.parse_args()
    found = real(options.minutes, options.out) if options.kind == "real" else simulated(options.hours)
    print(json.dumps(found, indent=1))
    raise SystemExit(0 if found["holds"] else 1)


if __name__ == "__main__":
    main()
