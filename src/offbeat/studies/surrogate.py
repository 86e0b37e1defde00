"""H(theta, phi): the gradient at theta of the surrogate over data that phi sampled, and its bias, measured directly.

*Common-numbers rule*: stale and fresh data are sampled for the same prompts with the same random numbers, so what
differs between them is what the two policies differ in, and noise shrinks with the bias itself. The squared norm of
the bias is estimated from products of independent batches, so noise adds nothing to it on average.
Source: arXiv 2607.01083 (the map and its bias); how to estimate it is ours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offbeat.learner.batches import samples_of
from offbeat.learner.layout import micro_batches
from offbeat.learner.logprobs import target_logprobs
from offbeat.learner.objective import grpo_objective, normaliser
from offbeat.learner.step import PolicyLearner
from offbeat.ports import Sampling
from offbeat.records import Batch
from offbeat.settings import Settings
from offbeat.studies.cell import Cell
from offbeat.studies.instruments import flat_gradient
from offbeat.studies.training import Trainer


def surrogate_gradient(learner: PolicyLearner, batch: Batch, settings: Settings) -> Tensor:
    """H [P]: the gradient of the clipped surrogate (to be minimised) of a whole batch at the learner's parameters."""
    rollout, chosen = settings.rollout, settings.learner
    sampling = Sampling(rollout.temperature, rollout.top_k, rollout.top_p)
    policy = learner.policy
    samples = [
        sample
        for group in batch.groups
        for sample in samples_of(group, sampling, chosen.normalise_advantage, policy.vocabulary)
    ]
    divisor = normaliser(chosen.aggregation, sum(len(sample.response_ids) for sample in samples), len(samples))
    moving = [sample for sample in samples if sample.advantage != 0.0]
    for part in micro_batches(moving, chosen.micro_batch_tokens, policy.shares_prompts):
        logprobs, _ = target_logprobs(policy, part, rollout.temperature)
        loss, _ = grpo_objective(
            logprobs,
            part.behaviour_logprobs,
            part.advantages,
            part.response_mask,
            clip_low=chosen.clip_low,
            clip_high=chosen.clip_high,
            aggregation=chosen.aggregation,
            normaliser=divisor,
        )
        loss.backward()  # type: ignore[no-untyped-call]
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    gradient = flat_gradient(parameters)
    learner.optimizer.zero_grad(set_to_none=True)
    return gradient


def squared_norm(vectors: Sequence[Tensor]) -> float:
    """||E v||^2 without bias from independent vectors [K of P]: the mean product of two different ones."""
    total = torch.stack(list(vectors)).double()
    whole = total.sum(0)
    count = len(vectors)
    return float((whole @ whole - (total * total).sum()) / (count * (count - 1)))


def bias(cell: Cell, policy: Path, say: Callable[[int, int], None]) -> dict[str, Any]:
    """Follow one cycle of a cyclic refresh and measure the bias at each staleness of `options["stalenesses"]`.

    `approach` sync steps at `approach_rate` lead to phi; then up to `cell.staleness` updates at the cell's rate follow
    on data of phi. At each S the bias ||H(theta, phi) - H(theta, theta)|| is estimated from `batches` pairs of
    batches of `groups` groups. Lists are by S: bias_squared (may be negative by noise), gradient_squared (of
    H(theta, theta)), lag_distance ||theta - phi||.
    """
    options = cell.options
    approach, stalenesses = int(options["approach"]), [int(s) for s in options["stalenesses"]]
    settings = cell.scale.settings(float(options["approach_rate"]), approach + cell.staleness)
    trainer = Trainer(cell, policy, settings)
    steps, done = approach + cell.staleness + len(stalenesses) * int(options["batches"]), 0
    found: dict[str, Any] = {"bias_squared": [], "gradient_squared": [], "lag_distance": [], "seconds": []}
    try:
        for done in range(1, approach + 1):
            trainer.step(lag=0)
            trainer.publish(keep=())
            say(done, steps)
        settings = cell.scale.settings(cell.learning_rate, approach + cell.staleness)
        trainer.set_rate(policy, settings)
        for staleness in range(1, cell.staleness + 1):
            trainer.step(lag=staleness - 1)
            done += 1
            if staleness in stalenesses:
                trainer.publish(keep=(approach,))
                started = time.process_time()
                _measure(trainer, settings, approach, options, found)
                found["seconds"].append(time.process_time() - started)
                done += int(options["batches"])
            say(done, steps)
    finally:
        trainer.close()
    return found


def _measure(trainer: Trainer, settings: Settings, phi: int, options: dict[str, Any], found: dict[str, Any]) -> None:
    theta = trainer.learner.version
    differences, fresh_gradients = [], []
    for k in range(int(options["batches"])):
        pair = [
            surrogate_gradient(
                trainer.learner,
                trainer.rollouts.batch(k, version, f"measure-{theta}", int(options["groups"])),
                settings,
            )
            for version in (phi, theta)
        ]
        differences.append(pair[0] - pair[1])
        fresh_gradients.append(pair[1])
    found["bias_squared"].append(squared_norm(differences))
    found["gradient_squared"].append(squared_norm(fresh_gradients))
    distance = float((trainer.snapshots[theta] - trainer.snapshots[phi]).norm())
    found["lag_distance"].append(distance)


def norm_of(squared: float) -> float:
    """The norm of an estimated square; 0 where noise made it negative."""
    return math.sqrt(max(0.0, squared))
