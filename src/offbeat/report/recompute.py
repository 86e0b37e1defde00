"""Behaviour log-probs computed again from the weights that are still kept, and compared with the stored ones.

*Same-weights check first*: the digest of a weights file must be the one the log announced for its version.
Needs torch, so it is apart from the rest of this room and imports the learner only when called.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from offbeat.errors import WeightsError
from offbeat.ports import Sampling
from offbeat.report.read import PayloadFacts, Run, read_prompt_ids, read_trajectories
from offbeat.report.story import Story, tell


def kept_weights(run: Run) -> dict[int, Path]:
    """Weights files in the run directory by version, announced in the log or not."""
    versions = run.directory / "versions"
    if not versions.is_dir():
        return {}
    files = {d.name: d / "model.safetensors" for d in sorted(versions.iterdir()) if d.name.isdigit()}
    return {int(name): file for name, file in files.items() if file.is_file()}


def recompute(run: Run, count: int, seed: int) -> tuple[int, float | None]:
    """Recompute up to `count` consumed trajectories, drawn with `seed` among those whose version is still kept.

    Returns (how many were recomputed, largest absolute difference of a token's log-prob: None for none, infinite
    where one of the two is not a number). What the audit reports as damaged (no payload, no prompt, several spans,
    log-probs missing or not finite) is not drawn. Raises WeightsError where a kept file is not what the log announced.
    """
    from offbeat.learner.rescore import Rescorer

    story = tell(run)
    announced = {0: run.meta.get("digest_0", "")} | {t.version: t.digest for _, _, t in story.publishes}
    drawn = _draw(run, story, count, seed)
    by_version: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for version, key in drawn:
        by_version[version].append(key)
    rollout = run.settings.rollout
    sampling = Sampling(temperature=rollout.temperature, top_k=rollout.top_k, top_p=rollout.top_p)
    error: float | None = None
    for version, keys in by_version.items():
        weights = kept_weights(run)[version]
        rescorer = Rescorer(run.policy_directory, weights)
        if rescorer.digest != announced.get(version):
            raise WeightsError(
                f"{weights}: its SHA-256 is {rescorer.digest[:12]}, the run log announced"
                f" {announced.get(version, 'nothing')[:12]} for version {version}; the file was changed after the run"
            )
        prompts = read_prompt_ids(run, [trajectory_id // story.group_size for trajectory_id, _ in keys])
        for prompt_ids, trajectory in zip(prompts, read_trajectories(run, keys), strict=True):
            again = rescorer.behaviour_logprobs(prompt_ids, trajectory, sampling)
            error = max(error or 0.0, _largest_difference(again, trajectory.behaviour_logprobs))
    return len(drawn), error


def _draw(run: Run, story: Story, count: int, seed: int) -> list[tuple[int, tuple[int, int]]]:
    """(version, (trajectory_id, attempt)) of the drawn, by version; the version is that of the Generate command."""
    kept = kept_weights(run)
    found: set[tuple[int, tuple[int, int]]] = set()
    for batch in story.consumptions:
        for group_id, attempts in zip(batch.train.group_ids, batch.train.attempts, strict=False):
            for key in zip(story.members(group_id), attempts, strict=False):
                asked, payload = story.dispatches.get(key), run.payloads.get(key)
                if asked and payload and _is_whole(payload) and group_id in run.prompts and asked[0].version in kept:
                    found.add((asked[0].version, key))
    return sorted(random.Random(seed).sample(sorted(found), min(count, len(found))))


def _is_whole(payload: PayloadFacts) -> bool:
    return len(payload.span_versions) == 1 and payload.logprobs == payload.tokens > 0 and payload.logprobs_sound


def _largest_difference(again: Sequence[float], stored: Sequence[float]) -> float:
    differences = [abs(a - b) for a, b in zip(again, stored, strict=True)]
    return max((d if math.isfinite(d) else math.inf for d in differences), default=0.0)
