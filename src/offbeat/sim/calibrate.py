"""Fit a cluster's costs and lengths to a recorded run, from its events alone.

What is fitted, and to what (seconds of run time, least squares without negative terms):

    decode step    duration of each response ~ tokens * (floor + per_sequence * responses running beside it)
    training       Train to Trained ~ fixed + (per_token + per_signal_token * signal) * tokens of the batch
    signal         share of groups whose rewards differ ~ share + slope * log(iteration)
    publish        LoadVersion to VersionLoaded, median          scoring   Score to Scored, median
    lengths        empirical, with growth per version and correlation within groups

Training and signal are fitted to the latest two thirds of what is looked at, lengths to the latest third.
What is fitted uses nothing after `until` (`halves` tests it on what came then).
This file reads no files and knows no figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import sqrt
from statistics import NormalDist, fmean, median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offbeat import events as e
from offbeat.errors import SettingsError
from offbeat.settings import Settings
from offbeat.sim.cluster import Cluster, cluster_from
from offbeat.sim.replay import Row, answered, asked

Floats = NDArray[np.float64]
ROUNDS = 12
RECENT = 1 / 3
"""Share of responses that count for lengths, the latest: as a policy learns, rambling becomes less."""
TREND = 2 / 3
"""Share of iterations that count for training and its trend: the first are unlike what follows."""
FEWEST = 8
"""Iterations from which on a trend is looked for; a run must have as many, four to fit and four to predict."""


def calibrate(rows: Sequence[Row], settings: Settings, prompt_tokens: float, name: str, until: int) -> Cluster:
    """The cluster a run was on, as it shows until its `until`-th publish: its lanes, one accelerator each, and one
    that trains. Its schedule is the run's; `run.iterations` are as many as the run did in all.
    """
    seen, done = [], 0
    for row in rows:
        seen.append(row)
        done += isinstance(row[1], e.Trained)
        if done == until:
            break
    finished = [event for _, event, _ in seen if isinstance(event, e.Finished)]
    services = _services(seen)
    floor, per_sequence = _decode(finished, settings.rollout.lanes)
    training = _training(seen, settings.schedule.group_size)
    lanes = settings.rollout.lanes
    schedule = settings.schedule
    return cluster_from(
        {
            "name": name,
            "accelerators": lanes + 1,
            "learner_share": 1 / (lanes + 1),
            "takes_turns": False,
            "slots": settings.rollout.slots,
            "cache_tokens": settings.rollout.cache_tokens,
            "decode": {"floor_seconds": floor, "per_sequence_seconds": per_sequence},
            "prefill": {"tokens_per_second": 1e9},
            "training": training,
            "publish": {"kind": "broadcast", "setup_seconds": _typical(services.get("load"))},
            "scoring": {"seconds": _typical(services.get("score"))},
            "transfer": {"setup_seconds": _typical(services.get("move"))},
            "lengths": lengths_of(finished, settings, prompt_tokens),
            "schedule": {
                "group_size": schedule.group_size,
                "train_batch_size": schedule.train_batch_size,
                "max_staleness": schedule.max_staleness,
                "max_versions": schedule.max_versions or schedule.max_staleness + 1,
                "rollout_batch_size": schedule.outstanding_limit,
                "at_bound": schedule.at_bound,
                "migration": schedule.migration,
                "legacy_fill": schedule.legacy_fill,
                "rebalance_seconds": schedule.rebalance_seconds,
            },
            "run": {
                "iterations": sum(isinstance(event, e.Trained) for _, event, _ in rows),
                "warmup": until,
                "seed": settings.run.seed,
            },
        }
    )


def _services(rows: Sequence[Row]) -> dict[str | int, list[float]]:
    """Seconds from question to answer, by kind of question."""
    asked_at: dict[tuple[str | int, ...], float] = {}
    found: dict[str | int, list[float]] = {}
    for now, event, commands in rows:
        key = answered(event)
        if key is not None and key in asked_at:
            found.setdefault(key[0], []).append(now - asked_at.pop(key))
        for command in commands:
            for question in asked(command):
                asked_at[question] = now
    return found


def _typical(seconds: list[float] | None) -> float:
    return median(seconds) if seconds else 0.0


def _decode(finished: Sequence[e.Finished], lanes: int) -> tuple[float, float]:
    """Floor and per-sequence seconds of a decode step.

    A response of n tokens takes n * floor + per_sequence * (responses running, summed over its n steps). Steps are not
    logged, so how they are spread over its life follows from the fit itself: a fixed point, a few rounds of it.
    """
    by_lane = [[f for f in finished if f.lane == lane and f.ended > f.started] for lane in range(lanes)]
    by_lane = [here for here in by_lane if here]
    if not by_lane:
        raise SettingsError("--calibrate: no response has finished in the first half of the run; give a longer one")
    lived = np.array([[f.started, f.ended] for here in by_lane for f in here])
    tokens = np.array([f.tokens for here in by_lane for f in here], dtype=float)
    floor, slope = 1.0, 0.0
    for _ in range(ROUNDS):
        company = np.concatenate([_company(here, floor, slope) for here in by_lane])
        floor, slope = not_negative(np.array([tokens, tokens * company]).T, lived[:, 1] - lived[:, 0])
        floor = max(floor, 1e-9)
    return floor, slope


def _company(here: Sequence[e.Finished], floor: float, slope: float) -> Floats:
    """Responses running on a lane, as the mean over the steps of each response."""
    begun, ended = np.array([f.started for f in here]), np.array([f.ended for f in here])
    moments = np.sort(np.concatenate([begun, ended]))
    running = np.searchsorted(np.sort(begun), moments, "right") - np.searchsorted(np.sort(ended), moments, "right")
    steps = np.diff(moments) / (floor + slope * running[:-1])
    done = np.concatenate([[0.0], np.cumsum(steps)])
    beside = np.concatenate([[0.0], np.cumsum(steps * running[:-1])])

    def during(total: Floats) -> Floats:
        return np.asarray(np.interp(ended, moments, total) - np.interp(begun, moments, total))

    return during(beside) / np.maximum(during(done), 1e-12)


def _training(rows: Sequence[Row], group_size: int) -> dict[str, float]:
    """The section `training`: what an iteration costs from the command to the event, and the share of it that falls as
    a policy learns. Raises SettingsError where the run stood still in nearly all of them.
    """
    found = list(batches_of(rows, group_size))
    if len(found) < FEWEST // 2 - 1:
        raise SettingsError("--calibrate: the run stood still in too many iterations of its first half; give another")
    recent = max(FEWEST // 2 - 1, round(TREND * len(found)))  # never the first, which also warms caches up
    iteration, tokens, signal, seconds = np.array(found[-recent:], dtype=float).T
    share, slope = signal_of(iteration, signal)
    fixed, per_token, per_signal = not_negative(np.array([np.ones(recent), tokens, tokens * signal]).T, seconds)
    return {
        "fixed_seconds": fixed,
        "per_token_work": per_token,
        "per_signal_token_work": per_signal,
        "signal_share": share,
        "signal_per_log_iteration": slope,
    }


class Batch(NamedTuple):
    """What was trained on and how long that took, from the command to the event. `signal` is the share of its groups
    whose rewards differ."""

    iteration: int
    tokens: int
    signal: float
    seconds: float


def batches_of(rows: Sequence[Row], group_size: int) -> Iterator[Batch]:
    """Those that the run did not stand still in."""
    asked_at: float | None = None
    for now, event, commands in rows:
        if isinstance(event, e.Suspended | e.Opened):
            asked_at = None
        if isinstance(event, e.Trained) and asked_at is not None:
            report = event.report
            signal = 1 - report.zero_advantage_groups * group_size / report.trajectories
            yield Batch(event.version, report.tokens + report.prompt_tokens, signal, now - asked_at)
        if any(isinstance(command, e.Train) for command in commands):
            asked_at = now


def signal_of(iteration: Floats, signal: Floats) -> tuple[float, float]:
    """Share at the first iteration and slope in log(iteration); the mean and none where it is within two errors."""
    found = _line(np.log(iteration), signal) if len(iteration) > FEWEST and signal.std() > 0 else None
    return found or (float(signal.mean()), 0.0)


def _line(x: Floats, y: Floats) -> tuple[float, float] | None:
    """Height at zero and slope of a straight line through points; None where the slope is within two errors of none."""
    (slope, height), covariance = np.polyfit(x, y, 1, cov=True)
    return (float(height), float(slope)) if abs(slope) > 2 * sqrt(covariance[0, 0]) else None


def not_negative(columns: Floats, target: Floats) -> list[float]:
    """Least squares with no negative coefficient, in as few columns as fit as well."""
    best, least = [0.0] * columns.shape[1], float("inf")
    same = 1e-9 * float(target @ target)
    for size in range(1, columns.shape[1] + 1):
        for chosen in combinations(range(columns.shape[1]), size):
            some = columns[:, chosen]
            found, *_ = np.linalg.lstsq(some, target, rcond=None)
            miss = float(((some @ found - target) ** 2).sum())
            if (found >= 0).all() and miss < least - same:
                least, best = miss, [0.0] * columns.shape[1]
                for place, value in zip(chosen, found, strict=True):
                    best[place] = float(value)
    return best


def lengths_of(finished: Sequence[e.Finished], settings: Settings, prompt_tokens: float) -> dict[str, Any]:
    """Empirical lengths as they would be under version 0, growth per version, correlation within groups."""
    recent = finished[-max(FEWEST * settings.schedule.train_batch_size, round(RECENT * len(finished))) :]
    growth = _steady(_growth(finished), _growth(recent))
    cap = settings.rollout.max_new_tokens
    return {
        "kind": "empirical",
        "values": tuple(max(1, round(f.tokens / (1 + growth) ** f.version)) for f in recent),
        "cap": cap,
        "growth_per_version": growth,
        "correlation": correlation(whole_groups(finished, settings.schedule.group_size)),
        "prompt_tokens": round(prompt_tokens),
    }


def whole_groups(finished: Sequence[e.Finished], size: int) -> list[list[int]]:
    """Tokens of the responses to a prompt, of each prompt whose responses are all here."""
    groups: dict[int, list[int]] = {}
    for f in finished:
        groups.setdefault(f.trajectory_id // size, []).append(f.tokens)
    return [group for group in groups.values() if len(group) == size]


def _steady(whole: float, recent: float) -> float:
    """The weaker of two slopes that agree, else none: what was so at first only does not go on for ever."""
    return min(whole, recent, key=abs) if whole * recent > 0 else 0.0


def _growth(finished: Sequence[e.Finished]) -> float:
    """Slope of the logarithm of a version's mean length, weighted by responses; none where it is within two errors."""
    by_version: dict[int, list[int]] = {}
    for f in finished:
        by_version.setdefault(f.version, []).append(f.tokens)
    versions = sorted(v for v, lengths in by_version.items() if len(lengths) >= 16)
    if len(versions) < 4:
        return 0.0
    x = np.array(versions, dtype=float)
    y = np.log([fmean(by_version[v]) for v in versions])
    found = _line(x, y)
    return float(np.exp(found[1]) - 1) if found else 0.0


def correlation(groups: Sequence[Sequence[int]]) -> float:
    """rho between responses to a prompt on the normal scale: the share of variance between groups of normal scores."""
    if len(groups) < 8:
        return 0.0
    values = np.array(groups, dtype=float)
    ranks = np.argsort(np.argsort(values, axis=None, kind="stable"), kind="stable").reshape(values.shape)
    quantile = NormalDist().inv_cdf
    scores = np.vectorize(lambda rank: quantile((rank + 0.5) / values.size))(ranks)
    size = values.shape[1]
    within = scores.var(axis=1, ddof=1).mean()
    between = scores.mean(axis=1).var(ddof=1) - within / size
    return float(min(1.0, max(0.0, between / (between + within))))
