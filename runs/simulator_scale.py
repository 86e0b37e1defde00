"""Claim: 100 iterations of 8,192 trajectories under multi-version on 16,384 accelerators are simulated in at most 60 s
of wall time and 2 GiB; the cost of an event grows no faster than log n from 64 to 16,384 accelerators.

Each size runs in a process of its own. The preset `scale-16k` has 1,024 lanes of 8 beside a learner of 8,192
accelerators; `--bar` also runs it with 2,048 lanes of 8 (16,384 accelerators in rollout, as many that train).

    python runs/simulator_scale.py [--bar] [--iterations 8] [--write docs/images/simulator_scale.svg]
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from offbeat.sim.cluster import changed, load_cluster
from offbeat.sim.simulate import simulate

SIZES = (64, 256, 1024, 4096, 16384)


def one(accelerators: int, iterations: int, schedule: str) -> dict[str, Any]:
    run = {"iterations": iterations, "warmup": min(4, iterations - 1)}
    cluster = changed(load_cluster("scale-16k"), accelerators=accelerators, run=run)
    marks: list[tuple[int, float]] = []
    started = time.process_time()
    events = 0

    def observe(event: object, now: float, commands: object) -> None:
        nonlocal events
        events += 1
        if type(event).__name__ == "Trained":
            marks.append((events, time.process_time()))

    done = simulate(cluster, schedule, observers=[observe])
    (first, begun), (last, ended) = marks[0], marks[-3]
    return {
        "accelerators": accelerators,
        "lanes": cluster.lanes(schedule),
        "iterations": iterations,
        "events": done.events,
        "wall_seconds": done.wall_seconds,
        "processor_seconds": time.process_time() - started,
        "microseconds_per_event": 1e6 * (ended - begun) / (last - first),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def aside(accelerators: int, iterations: int, schedule: str) -> dict[str, Any]:
    """The same in a fresh process."""
    order = [sys.executable, __file__, "--one", str(accelerators), "--iterations", str(iterations)]
    done = subprocess.run([*order, "--schedule", schedule], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def drawing(rows: list[dict[str, Any]]) -> str:
    """A small SVG: microseconds of processor time an event over accelerators, and what growing as log n would be."""
    width, height, left, bottom = 560, 260, 56, 36
    top = max(row["microseconds_per_event"] for row in rows)
    first = rows[0]
    log = [first["microseconds_per_event"] * math.log(r["accelerators"]) / math.log(SIZES[0]) for r in rows]
    top = 1.15 * max(top, *log)

    def place(i: int, value: float) -> str:
        x = left + i * (width - left - 20) / (len(rows) - 1)
        return f"{x:.0f},{height - bottom - value / top * (height - bottom - 16):.0f}"

    measured = " ".join(place(i, row["microseconds_per_event"]) for i, row in enumerate(rows))
    growing = " ".join(place(i, value) for i, value in enumerate(log))
    marks = "".join(
        f'<circle cx="{x}" cy="{y}" r="4" fill="#3f86cf"/>'
        f'<text x="{x}" y="{int(y) - 9}" text-anchor="middle">{row["microseconds_per_event"]:.0f}</text>'
        f'<text x="{x}" y="{height - 16}" text-anchor="middle">{row["accelerators"]:,}</text>'
        for i, row in enumerate(rows)
        for x, y in [place(i, row["microseconds_per_event"]).split(",")]
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        f' font-size="12" fill="#777"><rect width="{width}" height="{height}" fill="#fff"/>'
        f'<polyline points="{growing}" fill="none" stroke="#8a94a3" stroke-dasharray="4 4"/>'
        f'<polyline points="{measured}" fill="none" stroke="#3f86cf" stroke-width="2"/>{marks}'
        f'<text x="{left}" y="14">µs of processor time an event; dashed: growing as log n</text>'
        f'<text x="{width - 20}" y="{height - 2}" text-anchor="end">accelerators</text></svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--schedule", default="multi-version")
    parser.add_argument("--one", type=int, help="only this size, in this process")
    parser.add_argument("--bar", action="store_true")
    parser.add_argument("--write", type=Path, help="SVG of the cost of an event")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(one(options.one, options.iterations, options.schedule)))
        return
    if options.bar and options.write is not None:
        parser.error("--write draws the sizes that --bar leaves out: two runs")
    sizes = [(n, options.iterations) for n in SIZES]
    if options.bar:
        sizes = [(16384, 100), (32768, 100)]
    rows = []
    print("accelerators  lanes  iterations     events   wall s  processor s   us/event  peak GiB")
    for accelerators, iterations in sizes:
        row = aside(accelerators, iterations, options.schedule)
        rows.append(row)
        print(
            f"{row['accelerators']:12,}  {row['lanes']:5}  {row['iterations']:10}  {row['events']:9,}"
            f"  {row['wall_seconds']:7.1f}  {row['processor_seconds']:11.1f}"
            f"  {row['microseconds_per_event']:9.1f}  {row['peak_gib']:8.2f}",
            flush=True,
        )
    if options.write is not None:
        options.write.write_text(drawing(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
