"""The directory of a market run: the only file that writes and reads it. docs/market_runs.md is its specification.

*A part's file is one rename: whatever moment a process dies, what is there is a whole window.* `run.json` is written
once, at the start. No pickle.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import RunDirectoryError
from offbeat.market.diagnostics.divergence import ExclusionRule
from offbeat.market.equilibrium import Benchmark
from offbeat.market.gain import profit_gain
from offbeat.market.learners.settings import StudySettings, study_from

Array = NDArray[np.float64]
FORMAT, FORMAT_VERSION = "offbeat-market-run", 1


def part_file(directory: Path, part: int) -> Path:
    """Where a part's checkpoint lies."""
    return directory / f"part-{part:03d}.safetensors"


def write_whole(file: Path, text: str) -> None:
    """Write beside, sync, rename."""
    fresh = file.with_name(file.name + ".part")
    with fresh.open("w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(file)


def begin(directory: Path, study: StudySettings, kind: Literal["run", "sweep"], bounds: list[float | None]) -> None:
    """Make the directory and its `run.json`. Raises RunDirectoryError where something is there already."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise RunDirectoryError(f"{directory}: not empty; choose another --out, or go on with --resume {directory}")
    benchmark = study.benchmark()
    low, high = study.box(benchmark)
    head = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "settings": study.model_dump(mode="json"),
        "cells": [{"rate": rate, "latency": lag} for rate, lag in study.cells],
        "runs": [{"cell": cell, "seed": seed} for cell, seed in study.runs],
        "firms": study.demand.industry().firms,
        "box": [low, high],
        "benchmark": {
            "nash_prices": benchmark.nash.prices.tolist(),
            "cartel_prices": benchmark.cartel.prices.tolist(),
            "nash_profits": benchmark.nash.profits.tolist(),
            "cartel_profits": benchmark.cartel.profits.tolist(),
        },
        "critic_bound": bounds,
        "windows": study.run.windows,
    }
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(directory / "run.json", json.dumps(head, indent=1))


def read_head(directory: Path) -> dict[str, Any]:
    """`run.json`, checked to be ours. Raises RunDirectoryError."""
    try:
        head = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunDirectoryError(f"{directory}: no market run (there is no run.json)") from None
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{directory}/run.json: cannot be read ({error})") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise RunDirectoryError(f"{directory}/run.json: not a market run")
    if head.get("format_version") != FORMAT_VERSION:
        raise RunDirectoryError(
            f"{directory}: format {head.get('format_version')}, this offbeat reads {FORMAT_VERSION}"
        )
    return head


@dataclass(frozen=True)
class MarketRun:
    """A run or sweep as far as it is; R runs, n firms, W windows done by all parts. `seconds` of the part that took
    longest, `processor_seconds` of all. `trace`: see docs/market_runs.md.
    """

    directory: Path
    kind: str
    study: StudySettings
    benchmark: Benchmark
    box: tuple[float, float]
    bounds: list[float | None]
    done: int
    seconds: float
    processor_seconds: float
    trace: dict[str, Array]

    @property
    def status(self) -> str:
        """running (or interrupted) or finished."""
        return "finished" if self.done == self.study.run.windows else "running"

    @property
    def cell(self) -> NDArray[np.intp]:
        """Cell of each run (R,)."""
        return np.array([cell for cell, _ in self.study.runs], dtype=np.intp)

    @property
    def diverged(self) -> NDArray[np.bool_]:
        """Runs whose critic broke its cell's bound in any window (R,), by the rule declared in `divergence`."""
        found = np.zeros(len(self.study.runs), dtype=bool)
        worst = np.nanmax(self.trace["critic_max"], axis=1) if self.done else np.empty((0, 0))
        for run, cell in enumerate(self.cell):
            bound = self.bounds[cell]
            if bound is not None and self.done:
                found[run] = ExclusionRule(bound).diverged(worst[:, run : run + 1])[0]
        return found

    @property
    def critic_peaks(self) -> Array:
        """Largest |Q| of each run's agents in any window over its cell's bound (R,); nan without a bound."""
        bounds = np.array([np.nan if bound is None else bound for bound in self.bounds])[self.cell]
        return np.nanmax(self.trace["critic_max"], axis=(0, 1)) / bounds if self.done else np.full(len(bounds), np.nan)

    def gains(self, quiet: bool = True, share: float = 0.1) -> Array:
        """Aggregate profit gain of each run (R,), mean over the last `share` of windows (at least one); nan if none
        is done.
        """
        profit = self.trace["quiet_profit" if quiet else "profit"]
        if not self.done:
            return np.full(len(self.study.runs), np.nan)
        last = max(1, round(share * self.study.run.windows))
        return profit_gain(self.benchmark, profit[-last:].mean(axis=0))


def read_market_run(directory: Path) -> MarketRun:
    """What `market run` or `market sweep` left in `directory`, finished or not. Raises RunDirectoryError."""
    from safetensors import SafetensorError, safe_open

    head = read_head(directory)
    study = study_from(head["settings"])
    runs, parts = len(study.runs), study.run.parts
    pieces: list[dict[str, Array]] = []
    seconds = processor = 0.0
    for part in range(parts):
        file = part_file(directory, part)
        if not file.exists():
            pieces.append({})
            continue
        try:
            with safe_open(str(file), framework="np") as saved:
                meta = saved.metadata() or {}
                names = [name for name in saved.keys() if name.startswith("trace.")]  # noqa: SIM118
                pieces.append({name.removeprefix("trace."): saved.get_tensor(name) for name in names})
        except (OSError, SafetensorError) as error:
            raise RunDirectoryError(f"{file}: damaged ({error})") from None
        seconds = max(seconds, float(meta.get("seconds", "0")))
        processor += float(meta.get("processor_seconds", "0"))
    done = min((len(piece["time"]) if piece else 0) for piece in pieces)
    trace: dict[str, Array] = {}
    names = sorted({name for piece in pieces for name in piece}) or list(TRACE)
    for name in names:
        shape = (done, runs) if name == "time" else (done, study.demand.industry().firms, runs)
        trace[name] = np.full(shape, np.nan)
        for part, piece in enumerate(pieces):
            if piece and done:
                trace[name][..., part::parts] = piece[name][:done]
    benchmark = study.benchmark()
    box = (float(head["box"][0]), float(head["box"][1]))
    return MarketRun(
        directory, head["kind"], study, benchmark, box, head["critic_bound"], done, seconds, processor, trace
    )


TRACE = ("time", "price", "profit", "quiet_price", "quiet_profit", "critic_max", "critic_loss", "noise")
