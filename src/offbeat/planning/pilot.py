"""A run as a pilot: its log, or the weights of its versions, become the steps that `theory.pilot` estimates from.

*Log first*: where the learner measured how far the parameters moved, the log alone is enough. Otherwise distances are
computed from the weights on disk, each checked against the digest the log announced, and a version that is no longer
kept leaves its steps out. Staleness counts publishes, a step is one publish. Writes nothing, needs no torch.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as parse_safetensors

from offbeat.errors import RunDirectoryError, WeightsError
from offbeat.report.read import Run
from offbeat.report.recompute import kept_weights
from offbeat.report.story import Consumption, Story, tell
from offbeat.theory.pilot import FEWEST_STEPS, PilotStep

Vector = NDArray[np.float32]


def pilot_steps(run: Run, said: Callable[[int, int], None] = lambda done, total: None) -> list[PilotStep]:
    """A step for each iteration of which all is known, in order; `said` hears how many are done.

    Raises RunDirectoryError, saying what to set, where too few are; WeightsError where a file is not what was
    published.
    """
    story = tell(run)
    logged = [step for batch in story.consumptions if (step := _logged(batch, _versions_of(story, batch)))]
    if len(logged) >= FEWEST_STEPS:
        return logged
    return _from_weights(run, story, len(logged), said)


def _logged(batch: Consumption, versions: Mapping[int, int]) -> PilotStep | None:
    """The step as the learner measured it; None where it did not."""
    report, seen = batch.trained.report, batch.trained.report.instruments
    if seen is None or seen.iteration_drift is None:
        return None
    squares = 0.0
    for version, count in versions.items():
        lag = batch.iteration - version
        distance = seen.drift_by_staleness[lag] if lag < len(seen.drift_by_staleness) else None
        if distance is None:
            return None
        squares += count * distance**2
    return PilotStep(
        eta=report.learning_rate * seen.rate_scale,
        update_norm=seen.iteration_drift,
        lag_distance=math.sqrt(squares / sum(versions.values())),
        mismatch=math.sqrt(2.0 * max(0.0, report.policy_lag_kl)),
        drift=seen.drift_from_start,
        reward=report.reward_mean,
    )


def _from_weights(run: Run, story: Story, logged: int, said: Callable[[int, int], None]) -> list[PilotStep]:
    kept = kept_weights(run)
    announced = {0: run.meta.get("digest_0", "")} | story.digests
    whole = [batch for batch in story.consumptions if _versions_of(story, batch).keys() <= kept.keys()]
    whole = [batch for batch in whole if {batch.iteration, batch.iteration + 1} <= kept.keys()]
    if len(whole) < FEWEST_STEPS:
        raise RunDirectoryError(
            f"run {run.directory}: how far the weights moved is logged of {logged} iterations and can be computed of"
            f" {len(whole)} whose weights are kept; {FEWEST_STEPS} are needed: make a longer pilot, with"
            " learner.measure_drift on"
        )
    shelf = _Shelf(kept, announced)
    start = shelf.vector(0) if 0 in kept else None
    steps = []
    for done, batch in enumerate(whole, start=1):
        steps.append(_step(batch, _versions_of(story, batch), shelf, start))
        shelf.forget_before(min(_versions_of(story, batch)))
        said(done, len(whole))
    return steps


def _versions_of(story: Story, batch: Consumption) -> Counter[int]:
    """How many trajectories of a batch each version sampled (the oldest of a trajectory's versions counts)."""
    found: Counter[int] = Counter()
    for group_id, attempts in zip(batch.train.group_ids, batch.train.attempts, strict=True):
        for key in zip(story.members(group_id), attempts, strict=True):
            found[story.version_of(key[0], story.dispatches[key][-1])] += 1
    return found


def _step(batch: Consumption, versions: Mapping[int, int], shelf: _Shelf, start: Vector | None) -> PilotStep:
    report, before, after = batch.trained.report, shelf.vector(batch.iteration), shelf.vector(batch.iteration + 1)
    squares = sum(count * _distance(before, shelf.vector(version)) ** 2 for version, count in versions.items())
    return PilotStep(
        eta=report.learning_rate,
        update_norm=_distance(after, before),
        lag_distance=math.sqrt(squares / sum(versions.values())),
        mismatch=math.sqrt(2.0 * max(0.0, report.policy_lag_kl)),
        drift=None if start is None else _distance(after, start),
        reward=report.reward_mean,
    )


def _distance(a: Vector, b: Vector) -> float:
    return float(np.linalg.norm((a - b).astype(np.float64)))


class _Shelf:
    """Parameter vectors of versions, read once and kept while they are needed."""

    def __init__(self, files: Mapping[int, Path], announced: Mapping[int, str]) -> None:
        self._files, self._announced = files, announced
        self._vectors: dict[int, Vector] = {}

    def vector(self, version: int) -> Vector:
        if version not in self._vectors:
            self._vectors[version] = np.concatenate(list(self._parts(version)))
        return self._vectors[version]

    def forget_before(self, version: int) -> None:
        self._vectors = {v: x for v, x in self._vectors.items() if v >= version}

    def _parts(self, version: int) -> Iterator[Vector]:
        file = self._files[version]
        try:
            data = file.read_bytes()
            if hashlib.sha256(data).hexdigest() != self._announced.get(version):
                raise WeightsError(f"{file}: its SHA-256 is not the one the run log announced for version {version}")
            tensors = parse_safetensors(data)
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{file}: cannot be read ({error})") from None
        for name in sorted(tensors):
            yield tensors[name].ravel().astype(np.float32)
