"""From records to samples: a batch is checked in full before anything is trained on it.

*No silent padding*: a trajectory whose tokens, behaviour log-probs or supports are missing, not finite or of
unequal lengths is an InvariantError that names it. Whole groups go to mini-batches in order of group_id.
Knows no tensor and no model; `layout.py` turns samples into tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from typing import TypeVar

from offbeat.errors import InvariantError
from offbeat.flow.staleness import staleness
from offbeat.learner.advantage import Baseline, group_advantages
from offbeat.ports import Sampling
from offbeat.records import Batch, Group, Span, Trajectory

T = TypeVar("T")
Support = tuple[int, ...] | None
"""Token ids the behaviour policy kept at one position; None where it kept all."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One trajectory to learn from: prompt ids [P], response ids [L] and, per response token, what sampled it.

    `supports` [L] is None where no position was cut, `loss_mask` [L] where every token was sampled. `group_id` says
    which samples share their prompt. `staleness` is in publishes. `proximal_logprobs` [L] are None until somebody
    computed them.
    """

    group_id: int
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    supports: tuple[Support, ...] | None
    advantage: float
    staleness: int = 0
    proximal_logprobs: tuple[float, ...] | None = None
    loss_mask: tuple[bool, ...] | None = None

    @property
    def sampled(self) -> int:
        """Response tokens that the policy sampled: those that are trained on."""
        return len(self.response_ids) if self.loss_mask is None else sum(self.loss_mask)

    def of_sampled(self, values: Sequence[T]) -> Sequence[T]:
        """Those of the values [L] that belong to sampled tokens."""
        return values if self.loss_mask is None else tuple(compress(values, self.loss_mask))


def is_cut(sampling: Sampling, vocabulary: int) -> bool:
    """True where top-k or top-p cut the behaviour distribution, so that every position needs its support.

    Temperature 0 is greedy: the engine then states the log-probs of the whole distribution at temperature 1.
    """
    return sampling.temperature > 0 and (sampling.top_p < 1 or 0 < sampling.top_k < vocabulary)


def samples_of(
    group: Group,
    sampling: Sampling,
    normalise_advantage: bool,
    vocabulary: int,
    baseline: Baseline = "group-mean",
    iteration: int | None = None,
) -> list[Sample]:
    """The G samples of a group, every number checked.

    `vocabulary` is the number of token ids the model knows; `iteration` is the trainer's version (without it every
    staleness is 0). Raises InvariantError naming what is wrong.
    """
    if len(group.trajectories) != len(group.rewards):
        raise InvariantError(
            f"group {group.group_id}: {len(group.trajectories)} trajectories but {len(group.rewards)} rewards"
        )
    if not group.prompt.token_ids:
        raise InvariantError(f"group {group.group_id}: prompt {group.prompt.prompt_id} carries no token ids")
    _check_ids(group.prompt.token_ids, vocabulary, f"group {group.group_id}, prompt {group.prompt.prompt_id}")
    lengths = [trajectory.sampled_tokens for trajectory in group.trajectories]
    if min(lengths, default=1) < 1:
        raise InvariantError(f"trajectory {group.trajectories[lengths.index(0)].trajectory_id}: no response tokens")
    advantages = group_advantages(group.rewards, normalise_advantage, baseline, lengths)
    made = (
        sample_of(trajectory, group.prompt.token_ids, sampling, vocabulary, group.group_id, advantage)
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
    )
    if iteration is None:
        return list(made)
    ages = (staleness(iteration, trajectory.version) for trajectory in group.trajectories)
    return [replace(sample, staleness=age) for sample, age in zip(made, ages, strict=True)]


def sample_of(
    trajectory: Trajectory,
    prompt_ids: tuple[int, ...],
    sampling: Sampling,
    vocabulary: int,
    group_id: int = 0,
    advantage: float = 0.0,
) -> Sample:
    """One trajectory, its spans joined in order. Raises InvariantError naming trajectory and span."""
    cut = is_cut(sampling, vocabulary)
    for span in trajectory.spans:
        where = f"trajectory {trajectory.trajectory_id}, span of version {span.version}"
        _check_span(span, vocabulary, where)
        if cut and span.behaviour_support is None:
            raise InvariantError(f"{where}: sampled with {sampling} but carries no behaviour support")
    response_ids = trajectory.token_ids
    if not trajectory.sampled_tokens:
        raise InvariantError(f"trajectory {trajectory.trajectory_id}: no response tokens")
    supports: tuple[Support, ...] | None = None
    if any(span.behaviour_support is not None for span in trajectory.spans):
        supports = tuple(
            kept for span in trajectory.spans for kept in (span.behaviour_support or (None,) * len(span.token_ids))
        )
    mask: tuple[bool, ...] | None = None
    if any(span.loss_mask is not None for span in trajectory.spans):
        mask = tuple(kept for span in trajectory.spans for kept in (span.loss_mask or (True,) * len(span.token_ids)))
    return Sample(
        group_id, prompt_ids, response_ids, trajectory.behaviour_logprobs, supports, advantage, loss_mask=mask
    )  # fmt: skip


def mini_batches(batch: Batch, updates: int) -> list[tuple[Group, ...]]:
    """Split the groups, ordered by group_id, into `updates` consecutive runs whose sizes differ by one at most.

    Raises InvariantError where a group occurs twice or there are fewer groups than updates.
    """
    groups = sorted(batch.groups, key=lambda group: group.group_id)
    for earlier, later in pairwise(groups):
        if earlier.group_id == later.group_id:
            raise InvariantError(f"iteration {batch.iteration}: group {later.group_id} occurs twice in its batch")
    if len(groups) < updates:
        raise InvariantError(f"iteration {batch.iteration}: {len(groups)} groups cannot make {updates} updates")
    bounds = [len(groups) * i // updates for i in range(updates + 1)]
    return [tuple(groups[start:end]) for start, end in pairwise(bounds)]


def zero_advantage_groups(samples: Iterable[Sample]) -> int:
    """How many groups have zero advantage everywhere, so that they cannot move the policy."""
    moves: dict[int, bool] = {}
    for sample in samples:
        moves[sample.group_id] = moves.get(sample.group_id, False) or sample.advantage != 0.0
    return sum(not moved for moved in moves.values())


def _check_span(span: Span, vocabulary: int, where: str) -> None:
    count = len(span.token_ids)
    if len(span.behaviour_logprobs) != count:
        raise InvariantError(f"{where}: {count} tokens but {len(span.behaviour_logprobs)} behaviour log-probs")
    _check_ids(span.token_ids, vocabulary, where)
    for position, logprob in enumerate(span.behaviour_logprobs):
        if not math.isfinite(logprob):
            raise InvariantError(f"{where}: behaviour log-prob {logprob} at position {position} is not finite")
        if logprob > 1e-3:
            raise InvariantError(f"{where}: behaviour log-prob {logprob} at position {position} is above 0")
    if span.loss_mask is not None and len(span.loss_mask) != count:
        raise InvariantError(f"{where}: {count} tokens but a loss mask of {len(span.loss_mask)}")
    if span.behaviour_support is None:
        return
    if len(span.behaviour_support) != count:
        raise InvariantError(f"{where}: {count} tokens but {len(span.behaviour_support)} behaviour supports")
    for position, (token, kept) in enumerate(zip(span.token_ids, span.behaviour_support, strict=True)):
        if token not in kept:
            raise InvariantError(f"{where}: token {token} at position {position} is not in its behaviour support")
        _check_ids(kept, vocabulary, f"{where}, support at position {position}")


def _check_ids(ids: Sequence[int], vocabulary: int, where: str) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < vocabulary):
        wrong = next(token for token in ids if not 0 <= token < vocabulary)
        raise InvariantError(f"{where}: token id {wrong} is outside the model's vocabulary of {vocabulary}")
