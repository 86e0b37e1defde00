"""Claim: calibrated on DORA's two synchronous rows alone, the simulator predicts the published step times of the other
systems (arXiv 2604.26256v1, section 5.2; 64 and 128 H800, Qwen2.5-32B) with the scheduler of a live run.

Calibrated: training time T(N) = a + b / N and the decode step (floor, seconds per sequence), on sync at 64 and 128.
Assumed, since unpublished: lanes of 4, half of the accelerators train, RBS / TBS = 2 (partial: 1.2), rho = 0.5 in a
group. `--sweep` shows what hangs on each. Figures are means over seeds, a miss with its 95 % interval (Student).

    python runs/dora_tables.py [--iterations 14] [--seeds 3] [--rows out/dora.jsonl] [--sweep] [--json]

What `--rows` holds already is not simulated again.
"""

from __future__ import annotations

import argparse
import json
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from offbeat.sim.cluster import Cluster, changed, load_cluster
from offbeat.sim.kept import Kept
from offbeat.sim.simulate import simulate

SIZES = (64, 128)
PUBLISHED: dict[str, dict[int, tuple[float, float | None]]] = {
    "sync": {64: (22.91, 14.89), 128: (20.23, 14.77)},
    "one-step-off": {64: (22.94, 7.57), 128: (14.02, None)},
    "partial": {64: (17.38, 8.0), 128: (13.95, None)},
    "multi-version": {64: (14.67, 1.76), 128: (10.46, 2.51)},
}
"""Minutes a step, and of it rollout only (section 6.1 of the reference: percentages of the paper times step time)."""
TOKENS = {
    "sync": {64: 14143, 128: 16070},
    "one-step-off": {64: 14141, 128: 23220},
    "partial": {64: 19872, 128: 30750},
    "multi-version": {64: 23327, 128: 34135},
}
BANDS = {"sync": 0.03, "one-step-off": 0.10, "partial": 0.15, "multi-version": 0.10}
BATCH = 8192


STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}
"""97.5 % quantiles of the mean of so many seeds."""


def preset(accelerators: int, iterations: int, seed: int = 0, **values: Any) -> Cluster:
    cluster = load_cluster("dora-64" if accelerators == 64 else "dora-128")
    return changed(cluster, run={"iterations": iterations, "warmup": 4, "seed": seed}, **values)


def predict(iterations: int, seeds: int, kept: Kept, **values: Any) -> dict[str, dict[int, dict[str, Any]]]:
    """Results by schedule and size: means over seeds, with `half`, half the width of the interval of the step time."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for schedule in PUBLISHED:
        for n in SIZES:
            runs = []
            for seed in range(seeds):
                about = preset(n, iterations, seed, **values)
                runs.append(
                    kept.result(about, schedule, lambda a=about, s=schedule: simulate(a, s).result)  # type: ignore[misc]
                )
            found.setdefault(schedule, {})[n] = averaged(runs)
    return found


def averaged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    mean: dict[str, Any] = {k: fmean(r[k] for r in runs) for k, v in runs[0].items() if isinstance(v, int | float)}
    ages = sorted({age for r in runs for age in r["staleness_histogram"]})
    mean["staleness_histogram"] = {age: fmean(r["staleness_histogram"].get(age, 0.0) for r in runs) for age in ages}
    steps = [r["step_minutes"] for r in runs]
    mean["half"] = STUDENT.get(len(runs), 2.0) * stdev(steps) / sqrt(len(steps)) if len(steps) > 1 else None
    return mean


def calibrate_decode(iterations: int, rounds: int = 3) -> tuple[float, float]:
    """(floor, per sequence) that give the rollout of sync at both sizes: Newton on two equations, sync rows only."""
    unknown = [0.0285, 15e-6]
    steps = (1e-4, 5e-6)

    def rollout(floor: float, per_sequence: float) -> list[float]:
        decode = {"floor_seconds": floor, "per_sequence_seconds": max(0.0, per_sequence)}
        runs = [simulate(preset(n, iterations, decode=decode), "sync").result for n in SIZES]
        return [r["rollout_only_minutes"] for r in runs]

    for _ in range(rounds):
        here = rollout(*unknown)
        missing = [PUBLISHED["sync"][n][1] - value for n, value in zip(SIZES, here, strict=True)]  # type: ignore[operator]
        (a, c), (b, d) = (
            [(there - value) / step for there, value in zip(rollout(*at), here, strict=True)]
            for at, step in (
                ((unknown[0] + steps[0], unknown[1]), steps[0]),
                ((unknown[0], unknown[1] + steps[1]), steps[1]),
            )
        )
        determinant = a * d - b * c
        unknown[0] += (d * missing[0] - b * missing[1]) / determinant
        unknown[1] += (a * missing[1] - c * missing[0]) / determinant
    return unknown[0], unknown[1]


def calibrate_training() -> tuple[float, float]:
    """(a, b) in seconds and accelerator-seconds: the rest of the two synchronous steps, T(N) = a + b / N."""
    small, large = (60 * (PUBLISHED["sync"][n][0] - PUBLISHED["sync"][n][1]) for n in SIZES)  # type: ignore[operator]
    work = (small - large) / (1 / SIZES[0] - 1 / SIZES[1])
    return small - work / SIZES[0], work


def rows(found: dict[str, dict[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    table = []
    for schedule, by_size in found.items():
        for n, result in by_size.items():
            step, only = PUBLISHED[schedule][n]
            miss = result["step_minutes"] / step - 1
            table.append(
                {
                    "schedule": schedule,
                    "accelerators": n,
                    "step_published": step,
                    "step_predicted": result["step_minutes"],
                    "miss": miss,
                    "miss_half_interval": None if result["half"] is None else result["half"] / step,
                    "in_band": abs(miss) <= BANDS[schedule],
                    "rollout_only_published": only,
                    "rollout_only_predicted": result["rollout_only_minutes"],
                    "trajectories_per_second_published": BATCH / step / 60,
                    "trajectories_per_second_predicted": result["trajectories_per_second"],
                    "tokens_per_second_published": TOKENS[schedule][n],
                    "tokens_per_second_predicted": result["tokens_per_second"],
                    "staleness": result["staleness_histogram"],
                    "staleness_mean": result["staleness_mean"],
                }
            )
    return table


def half(row: dict[str, Any]) -> str:
    width = row["miss_half_interval"]
    return "" if width is None else f" ±{100 * width:.1f}"


def show(table: list[dict[str, Any]]) -> None:
    print(
        "schedule       acc  step published  predicted    miss        band  rollout only p. pred.   traj/s p. pred."
        "  tok/s p. pred."
    )
    for r in table:
        only = "     -" if r["rollout_only_published"] is None else f"{r['rollout_only_published']:6.2f}"
        print(
            f"{r['schedule']:14} {r['accelerators']:3}  {r['step_published']:14.2f} {r['step_predicted']:10.2f}"
            f" {r['miss']:+6.1%}{half(r):7}  {'yes' if r['in_band'] else 'NO ':4} {only:>17}"
            f" {r['rollout_only_predicted']:5.2f}"
            f" {r['trajectories_per_second_published']:13.2f} {r['trajectories_per_second_predicted']:5.2f}"
            f" {r['tokens_per_second_published']:11,} {r['tokens_per_second_predicted']:6,.0f}",
            flush=True,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=14)
    parser.add_argument(
        "--calibrate", action="store_true", help="fit to the sync rows and say what the presets should hold"
    )
    parser.add_argument("--sweep", action="store_true", help="what was assumed, one at a time")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=Path, help="JSON lines: what is there already is not simulated again")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.calibrate:
        print("T(N) = {:.1f} s + {:.0f} accelerator-s / N".format(*calibrate_training()))
        print("decode step = {:.5f} s + {:.2e} s per sequence".format(*calibrate_decode(options.iterations)))
        return
    kept = Kept(options.rows)
    table = rows(predict(options.iterations, options.seeds, kept))
    if options.json:
        print(json.dumps(table))
        return
    show(table)
    if options.sweep:
        for values in (
            *({"schedule": {"over_dispatch": over}} for over in (1.05, 1.1, 1.2, 1.5)),
            *({"schedule": {"over_issue": over}} for over in (1.1, 1.5)),
            *({"lengths": {"correlation": rho}} for rho in (0.0, 0.8)),
            *({"learner_share": share} for share in (0.4, 0.6)),
            *({"lane_accelerators": lane} for lane in (2, 8)),
            *({"schedule": {"max_versions": most}} for most in (2, 4)),
            {"schedule": {"legacy_fill": False}},
            {"decode": {"per_context_token_seconds": 2e-8}},
        ):
            print(f"\n{values}")
            found = rows(predict(options.iterations, options.seeds, kept, **values))
            show([r for r in found if r["schedule"] != "sync"])


if __name__ == "__main__":
    main()
