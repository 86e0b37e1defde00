"""Claims about the Ray backend, measured on one machine against the local one (docs/cluster.md).

`throughput`  trajectories per second of whole runs, at least 0.9 of the local backend's; and what the main process
              takes for a trajectory, decisions, log and Ray together, at most 2 ms of processor time.
`publish`     from the file of a 135M-parameter model to four lanes that have its bytes: at most twice one copy of them.
`recovery`    from the news that a lane was killed to its next response, at most 5 s; from `--resume` after the main
              process was killed to the first response, at most 20 s.

Arms take turns; printed are all repeats and medians. `publish` stops where bytes are in the lanes' address space: what
an engine does then (file, checksum, folding, canary) is the same in both backends, except for the file, given apart.

    python runs/ray_bars.py throughput publish recovery
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

PARAMETERS = 134_515_008
"""Of SmolLM2-135M; in float32 a version of it is four times as many bytes."""
SETTINGS = (
    "task.held_out=8",
    "run.evaluate_every=0",
    "run.tensorboard=false",
    "learner.learning_rate=1e-5",
    "schedule.group_size=8",
)


def policy(directory: Path) -> Path:
    from offbeat.models.presets import PRESETS, build_model, write_policy

    write_policy(build_model(PRESETS["nano"], seed=0), directory)
    return directory


def command(directory: Path, model: Path, *overrides: str) -> list[str]:
    chosen = [part for each in (f"model.path={model}", *SETTINGS, *overrides) for part in ("--set", each)]
    return [sys.executable, __file__, "--run", str(directory), *chosen]


def one_run(directory: str, overrides: list[str]) -> None:
    """In a process of its own: a whole run; its rate and this process's time between the first and last iteration."""
    from offbeat import wire
    from offbeat.events import Command, Event, Trained
    from offbeat.settings import load_settings

    path, settings = Path(directory), load_settings(None, overrides)
    marks: list[tuple[float, float]] = []

    def saw(event: Event, now: float, commands: Sequence[Command]) -> None:
        if isinstance(event, Trained):
            marks.append((now, time.process_time()))

    wire.start(path, settings, lambda note, share: None)
    wire.go_on(path, lambda opened: [saw], lambda words: None)
    (began, before), (ended, after) = marks[0], marks[-1]
    trajectories = settings.schedule.train_batch_size * (len(marks) - 1)
    print(json.dumps({"rate": trajectories / (ended - began), "main": 1e3 * (after - before) / trajectories}))


def throughput(folder: Path, repeats: int, iterations: int) -> None:
    model = policy(folder / "model")
    found: dict[str, list[dict[str, float]]] = {"local": [], "ray": []}
    for repeat in range(repeats):
        for backend in ("local", "ray") if repeat % 2 == 0 else ("ray", "local"):
            where = folder / f"{backend}-{repeat}"
            asked = command(where, model, f"learner.iterations={iterations}", f"run.backend={backend}")
            done = subprocess.run(asked, capture_output=True, text=True, check=True)
            found[backend].append(json.loads(done.stdout.splitlines()[-1]))
            print(backend, found[backend][-1], flush=True)
    ratios = [r["rate"] / here["rate"] for r, here in zip(found["ray"], found["local"], strict=True)]
    main = {name: statistics.median(each["main"] for each in arms) for name, arms in found.items()}
    print(f"throughput ray / local: {[round(r, 3) for r in ratios]}, median {statistics.median(ratios):.3f}")
    print(f"main process, ms a trajectory: local {main['local']:.2f}, ray {main['ray']:.2f}")


def publish(folder: Path, repeats: int) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    from offbeat.backends.ray_host import place_files, read_files

    ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    file = folder / "model.safetensors"
    contents = np.random.default_rng(0).integers(0, 255, 4 * PARAMETERS, dtype=np.uint8)
    contents.tofile(file)

    @ray.remote
    class Learner:
        def version(self) -> object:
            return read_files(file.parent, [file.name])

    @ray.remote
    class Lane:
        def ready(self) -> None:
            pass

        def take(self, files: list[object]) -> int:
            return int(ray.get(files[0])[file.name].nbytes)  # type: ignore[call-overload]

        def place(self, files: list[object], where: str) -> None:
            Path(where).parent.mkdir(parents=True, exist_ok=True)
            place_files(Path(where), ray.get(files[0]))  # type: ignore[call-overload]

    learner, lanes = Learner.remote(), [Lane.remote() for _ in range(4)]  # type: ignore[attr-defined]
    ray.get([lane.ready.remote() for lane in lanes])
    ratios = []
    for repeat in range(repeats):
        began = time.perf_counter()
        copy = contents.copy()
        copied = time.perf_counter() - began
        del copy
        began = time.perf_counter()
        files = learner.version.remote()
        sizes = ray.get([lane.take.remote([files]) for lane in lanes])
        published = time.perf_counter() - began
        assert set(sizes) == {contents.nbytes}
        began = time.perf_counter()
        ray.get([lane.place.remote([files], str(folder / f"{repeat}" / f"{i}")) for i, lane in enumerate(lanes)])
        placed = time.perf_counter() - began
        ratios.append(published / copied)
        print(f"copy {copied:.3f} s, publish {published:.3f} s, files of four lanes {placed:.3f} s", flush=True)
        subprocess.run(["rm", "-rf", str(folder / f"{repeat}")], check=True)
    print(f"publish / copy: {[round(r, 2) for r in ratios]}, median {statistics.median(ratios):.2f}")
    ray.shutdown()


def events(directory: Path, kinds: tuple[str, ...]) -> list[tuple[float, str]]:
    marks = ",".join("?" * len(kinds))
    with closing(sqlite3.connect(f"file:{directory / 'run.sqlite'}?mode=ro", uri=True)) as log, log:
        return log.execute(f"SELECT now, kind FROM events WHERE kind IN ({marks}) ORDER BY seq", kinds).fetchall()


def until(directory: Path, kind: str, count: int) -> None:
    while not (directory / "run.sqlite").exists() or len(events(directory, (kind,))) < count:
        time.sleep(0.02)


def recovery(folder: Path, repeats: int) -> None:
    """One lane, so that nobody else can answer for it."""
    import psutil

    model = policy(folder / "recovery-model")
    for repeat in range(repeats):
        where = folder / f"recovery-{repeat}"
        running = subprocess.Popen(
            command(where, model, "learner.iterations=100000", "run.backend=ray"), stdout=subprocess.DEVNULL
        )
        until(where, "Trained", 3)
        hosts = [p for p in psutil.Process(running.pid).children(recursive=True) if p.name().startswith("ray::Host")]
        lane = next(p for p in hosts if not any("learner.lock" in f.path for f in p.open_files()))
        lane.kill()
        until(where, "LaneReady", 2)
        time.sleep(8)
        told = events(where, ("LaneLost", "Finished"))
        lost = next(now for now, kind in told if kind == "LaneLost")
        again = next(now for now, kind in told if kind == "Finished" and now > lost + 0.5)
        running.send_signal(signal.SIGKILL)
        running.wait()
        began, known = time.monotonic(), len(events(where, ("Finished",)))
        resumed = subprocess.Popen(
            [sys.executable, "-m", "offbeat.cli", "train", "--resume", str(where), "--json"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(where, "Finished", known + 1)
        print(f"lane killed: next response {again - lost:.1f} s after the news; main killed: first response"
              f" {time.monotonic() - began:.1f} s after --resume", flush=True)  # fmt: skip
        resumed.send_signal(signal.SIGTERM)
        resumed.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="throughput, publish, recovery")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--set", action="append", default=[], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.run:
        one_run(asked.run, asked.set)
        return
    with tempfile.TemporaryDirectory() as folder:
        if "throughput" in asked.parts:
            throughput(Path(folder), asked.repeats, asked.iterations)
        if "publish" in asked.parts:
            publish(Path(folder), asked.repeats)
        if "recovery" in asked.parts:
            recovery(Path(folder), asked.repeats)


if __name__ == "__main__":
    main()
