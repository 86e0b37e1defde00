"""Behaviour log-probs computed again from stored weights: the proof that a trajectory was sampled as it says.

*Same-distribution invariant*: what is computed is what the rollout engine stated, temperature and cut included.
Holds one version's weights; knows no run log and judges nothing, the caller compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from offbeat.errors import InvariantError
from offbeat.learner.batches import sample_of
from offbeat.learner.checkpoint import load_weights
from offbeat.learner.logprobs import sample_logprobs
from offbeat.learner.policy import Policy
from offbeat.ports import Sampling
from offbeat.records import Trajectory


class Rescorer:
    """One version's weights, loaded once. `digest` is the SHA-256 of the weights file as read."""

    def __init__(self, model_dir: Path, weights: Path) -> None:
        """`model_dir` gives the architecture, `weights` is a model.safetensors. Raises WeightsError."""
        self._policy = Policy.for_weights(model_dir, weights)
        self.digest = load_weights(weights, self._policy)

    def behaviour_logprobs(self, prompt_ids: Sequence[int], trajectory: Trajectory, sampling: Sampling) -> list[float]:
        """Log-probs [L] of the trajectory's tokens under these weights and this sampling.

        Temperature 0 (greedy) is stated at temperature 1 over the whole vocabulary, as the engine does.
        Raises InvariantError where the trajectory is malformed or several versions sampled it.
        """
        if len({span.version for span in trajectory.spans}) > 1:
            raise InvariantError(
                f"trajectory {trajectory.trajectory_id}: several versions sampled it; one version cannot rescore it"
            )
        sample = sample_of(trajectory, tuple(prompt_ids), sampling, self._policy.vocabulary)
        return sample_logprobs(self._policy, sample, sampling.temperature or 1.0)

    def logprobs_of_version(
        self, prompt_ids: Sequence[int], trajectory: Trajectory, sampling: Sampling, version: int
    ) -> list[float]:
        """Log-probs of the tokens that `version` sampled, in order, these weights being that version's.

        All that stands before them is context, computed by these weights too: what an engine states that computes
        prompt and tokens again when another version takes over, not one that keeps the earlier keys and values.
        Raises InvariantError where the trajectory is malformed.
        """
        spans = list(trajectory.spans)
        while spans and spans[-1].version != version:
            spans.pop()
        if not spans:
            return []
        context = msgspec.structs.replace(trajectory, spans=tuple(spans))
        sample = sample_of(context, tuple(prompt_ids), sampling, self._policy.vocabulary)
        logprobs = sample_logprobs(self._policy, sample, sampling.temperature or 1.0)
        versions = [span.version for span in spans for _ in span.token_ids]
        return [logprob for logprob, of in zip(logprobs, versions, strict=True) if of == version]


def rescore(
    model_dir: Path, weights: Path, prompt_ids: Sequence[int], trajectory: Trajectory, sampling: Sampling
) -> list[float]:
    """One trajectory's log-probs [L] under stored weights; for many, keep a Rescorer."""
    return Rescorer(model_dir, weights).behaviour_logprobs(prompt_ids, trajectory, sampling)
