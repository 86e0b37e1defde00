"""Behaviour log-probs computed again from the weights that are still kept, and compared with the stored ones.

*Same-weights check first*: the digest of a weights file must be the one the log announced for its version.
Needs torch, so it is apart from the rest of this room and imports the learner only when called.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from offbeat.errors import WeightsError
from offbeat.ports import Sampling
from offbeat.report.laws import promised
from offbeat.report.read import PayloadFacts, Run, read_prompt_ids, read_trajectories
from offbeat.report.story import Dispatch, Story, tell

Versions = tuple[int, ...]
Key = tuple[int, int]
RE_PREFILLING = {"partial"}
"""Schedules that compute prompt and tokens again when another version takes a response over."""


def kept_weights(run: Run) -> dict[int, Path]:
    """Weights files in the run directory by version, announced in the log or not."""
    versions = run.directory / "versions"
    if not versions.is_dir():
        return {}
    files = {d.name: d / "model.safetensors" for d in sorted(versions.iterdir()) if d.name.isdigit()}
    return {int(name): file for name, file in files.items() if file.is_file()}


def recompute(
    run: Run, count: int, seed: int, said: Callable[[int, int], None] = lambda done, total: None
) -> tuple[int, float | None]:
    """Recompute up to `count` consumed trajectories, drawn with `seed` among those whose versions are all still kept.
    `said` hears how many are done of how many.

    Returns (how many were recomputed, largest absolute difference of a token's log-prob: None for none, infinite
    where one of the two is not a number). Of several spans, each is computed by its own version with all before it
    as context: what `partial` did when it took a response up again. `in-flight` went on over keys and values of
    earlier versions, which are not stored, so of its trajectories only those of one span can be recomputed.
    What the audit reports as damaged (no payload, no prompt, more spans than the schedule allows, log-probs missing
    or not finite) is not drawn. Raises WeightsError where a kept file is not what the log announced.
    """
    from offbeat.learner.rescore import Rescorer

    story = tell(run)
    announced = {0: run.meta.get("digest_0", "")} | story.digests
    drawn = _draw(run, story, count, seed)
    by_version: dict[int, list[Key]] = defaultdict(list)
    for versions, key in drawn:
        for version in versions:
            by_version[version].append(key)
    rollout = run.settings.rollout
    sampling = Sampling(temperature=rollout.temperature, top_k=rollout.top_k, top_p=rollout.top_p)
    error: float | None = None
    done, total = 0, sum(map(len, by_version.values()))
    for version, keys in sorted(by_version.items()):
        weights = kept_weights(run)[version]
        rescorer = Rescorer(run.policy_directory, weights)
        if rescorer.digest != announced.get(version):
            raise WeightsError(
                f"{weights}: its SHA-256 is {rescorer.digest[:12]}, the run log announced"
                f" {announced.get(version, 'nothing')[:12]} for version {version}; the file was changed after the run"
            )
        prompts = read_prompt_ids(run, [trajectory_id // story.group_size for trajectory_id, _ in keys])
        for prompt_ids, trajectory in zip(prompts, read_trajectories(run, keys), strict=True):
            if len(trajectory.spans) == 1:
                again = rescorer.behaviour_logprobs(prompt_ids, trajectory, sampling)
                stated = trajectory.behaviour_logprobs
            else:
                again = rescorer.logprobs_of_version(prompt_ids, trajectory, sampling, version)
                of_version = (span for span in trajectory.spans if span.version == version)
                stated = tuple(logprob for span in of_version for logprob in span.behaviour_logprobs)
            error = max(error or 0.0, _largest_difference(again, stated))
            done += 1
            said(done, total)
    return len(drawn), error


def _draw(run: Run, story: Story, count: int, seed: int) -> list[tuple[Versions, Key]]:
    """The drawn trajectories, each with the versions that must have sampled it."""
    kept = kept_weights(run)
    found: set[tuple[Versions, Key]] = set()
    for _, asked in story.consumed:
        key = (asked.trajectory_id, asked.attempt)
        payload = run.payloads.get(key)
        if payload and _is_whole(payload) and asked.group_id in run.prompts:
            versions = _versions(run.settings.schedule.name, asked, payload)
            if versions and set(versions) <= kept.keys():
                found.add((versions, key))
    return sorted(random.Random(seed).sample(sorted(found), min(count, len(found))))


def _versions(schedule: str, asked: Dispatch, payload: PayloadFacts) -> Versions:
    """The versions to recompute with, each once: under C1 the one asked for. Empty where it cannot be done."""
    if len(payload.span_versions) != 1 and schedule not in RE_PREFILLING:
        return ()
    return (asked.version,) if "c1" in promised(schedule) else tuple(sorted(set(payload.span_versions)))


def _is_whole(payload: PayloadFacts) -> bool:
    return payload.logprobs == payload.tokens > 0 and payload.logprobs_sound


def _largest_difference(again: Sequence[float], stored: Sequence[float]) -> float:
    differences = [abs(a - b) for a, b in zip(again, stored, strict=True)]
    return max((d if math.isfinite(d) else math.inf for d in differences), default=0.0)
