"""Why behaviour and target log-probs differ, split in two: the engine's error and the policy's lag.

    stated - target  =  (stated - own)  +  (own - target)       own: the sampling version, computed by the learner

*Untouched invariant*: the parameters are those of before, bit for bit, after another version was computed with them.
Knows no optimizer and no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

import torch
from torch import Tensor, nn

from offbeat.learner.batches import Sample
from offbeat.learner.layout import MicroBatch
from offbeat.learner.logprobs import target_logprobs
from offbeat.learner.policy import Policy
from offbeat.learner.sharding import is_shard, local
from offbeat.learner.tally import LARGEST
from offbeat.records import Gap, Mismatch

PASS_TOKENS = 8192
BEYOND = 0.1
"""Nats from which on a token counts as far off."""


def staleness_of(sample: Sample) -> int:
    return sample.staleness


def spread(samples: Sequence[Sample], count: int) -> list[Sample]:
    """`count` of them at even distances, all where there are no more."""
    return [samples[i * len(samples) // count] for i in range(count)] if count < len(samples) else list(samples)


def measure(
    policy: Policy,
    parameters: Sequence[nn.Parameter],
    weights_of: Callable[[int], Sequence[Tensor] | None],
    samples: Sequence[Sample],
    temperature: float,
    version: int,
) -> Mismatch | None:
    """Over the tokens of `samples`, the target being `version`. `weights_of` a version gives tensors in the order of
    `parameters`; samples of versions that it does not have are left out; None where none is left."""
    stated, own, target = list[float](), list[float](), list[float]()
    in_order = sorted(samples, key=staleness_of)
    for staleness, members in groupby(in_order, key=staleness_of):  # a version's weights are fetched once
        weights = weights_of(version - staleness)
        if weights is None:
            continue
        batches = policy.micro_batches(list(members), PASS_TOKENS)
        now = _logprobs(policy, batches, temperature)
        with holding(parameters, weights):
            own += _logprobs(policy, batches, temperature) if staleness else now
        target += now
        stated += [each for batch in batches for each in batch.behaviour_logprobs[batch.response_mask].tolist()]
    return Mismatch(len(own), gap(stated, own), gap(own, target)) if own else None


@torch.no_grad()
def _logprobs(policy: Policy, batches: Sequence[MicroBatch], temperature: float) -> list[float]:
    """Of the sampled tokens of all batches, one after the other."""
    found = list[float]()
    for batch in batches:
        found += target_logprobs(policy, batch, temperature)[0][batch.response_mask].tolist()
    return found


@contextmanager
def holding(parameters: Sequence[nn.Parameter], weights: Sequence[Tensor]) -> Iterator[None]:
    """The parameters have other values meanwhile: they point at them, or hold copies of their parts where they are
    sharded, for what is gathered of those comes from their own memory."""
    if any(map(is_shard, parameters)):
        parts = [local(parameter) for parameter in parameters]
        own = [part.clone() for part in parts]
        try:
            torch._foreach_copy_(parts, list(weights))
            yield
        finally:
            torch._foreach_copy_(parts, own)
        return
    kept = [parameter.data for parameter in parameters]
    try:
        for parameter, other in zip(parameters, weights, strict=True):
            parameter.data = other
        yield
    finally:
        for parameter, before in zip(parameters, kept, strict=True):
            parameter.data = before


def gap(one: Sequence[float], other: Sequence[float]) -> Gap:
    """Of two log-probs [T] of the same tokens. What is infinite (a token that became impossible) is written LARGEST."""
    apart = (torch.tensor(one, dtype=torch.float64) - torch.tensor(other, dtype=torch.float64)).abs()
    apart = apart.nan_to_num(nan=0.0).clamp(max=LARGEST)  # not a number: impossible under both
    return Gap(float(apart.mean()), float(apart.quantile(0.99)), float((apart > BEYOND).double().mean()))
