"""A cell of study `bias`: from phi, reached on-policy, updates on phi's data; the bias at several S on the way.

Every learning rate begins at the same phi with the same optimizer state and learns from the same batches, and the bias
is taken over the same prompts: what differs between points is S and the rate. Prompts are drawn in independent batches,
so ||bias||^2 is unbiased (`squared_norm`). Knows the learner's policy, not its step.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offbeat.learner.batches import Sample
from offbeat.learner.layout import MicroBatch
from offbeat.learner.logprobs import target_logprobs
from offbeat.learner.policy import Policy
from offbeat.models.gold import GoldAnswers, Limits
from offbeat.models.tokens import load_tokenizer
from offbeat.records import Batch
from offbeat.settings import Settings
from offbeat.studies.cell import Cell
from offbeat.studies.instruments import flat_gradient
from offbeat.studies.surrogate import clipped, closed, expected_advantages, squared_norm
from offbeat.studies.training import Trainer


def bias(cell: Cell, policy: Path, say: Callable[[int, int], None]) -> dict[str, Any]:
    """Points (S, eta) with ||H(theta, phi) - H(theta, theta)||^2 and its standard error, as trained and without the
    clip, ||H(theta, theta)||^2 and ||theta - phi||; `beside_gold`: the share of rewarded responses that were not the
    gold one, which should be 0.

    Options: `approach` sync steps at `approach_rate` lead to phi; then, for each of `rates`, `cell.staleness` updates;
    at each of `stalenesses` the bias is taken over `batches` batches of `groups` prompts.
    """
    options = cell.options
    approach, rates = int(options["approach"]), [float(rate) for rate in options["rates"]]
    stalenesses = [int(s) for s in options["stalenesses"]]

    def settings(rate: float) -> Settings:
        return cell.scale.settings(rate, approach + cell.staleness, aggregation="constant")

    trainer = Trainer(cell, policy, settings(float(options["approach_rate"])))
    points: list[dict[str, float]] = []
    done = 0
    try:
        for done in range(1, approach + 1):
            trainer.step(lag=0)
            trainer.publish(keep=())
            say(done, cell.steps)
        probe = Probe(trainer, policy, settings(rates[0]), int(options["batches"]), int(options["groups"]))
        with tempfile.TemporaryDirectory(prefix="offbeat-phi-") as folder:
            trainer.learner.save(Path(folder))
            for rate in rates:
                trainer.go_on_from(policy, Path(folder), settings(rate))
                for staleness in range(1, cell.staleness + 1):
                    trainer.step(lag=staleness - 1)
                    done += 1
                    if staleness in stalenesses:
                        points.append({"staleness": staleness, "eta": rate, **probe.measure(trainer)})
                    say(done, cell.steps)
    finally:
        trainer.close()
    return {"points": points, "beside_gold": probe.beside_gold}


class Probe:
    """Batches of prompts with their gold responses and phi's responses to them, phi being what the trainer holds."""

    def __init__(self, trainer: Trainer, policy: Path, settings: Settings, batches: int, groups: int) -> None:
        self._settings = settings
        self._phi = trainer.learner.version
        limits = Limits(settings.rollout.context, settings.rollout.max_new_tokens)
        self._gold = GoldAnswers(trainer.task, load_tokenizer(policy), limits)
        self._rewarded = self._others = 0
        drawn = [trainer.rollouts.batch(k, self._phi, "measure", groups) for k in range(batches)]
        self._batches = [self._prepared(trainer.learner.policy, batch) for batch in drawn]

    @property
    def beside_gold(self) -> float:
        return self._others / max(1, self._rewarded)

    def measure(self, trainer: Trainer) -> dict[str, float]:
        """The bias at the trainer's parameters."""
        policy, parameters = trainer.learner.policy, trainer.parameters
        biases, unclipped, fresh = [], [], []
        for golds, wrong in self._batches:
            on_policy = self._gradient(trainer, policy, golds, self._fresh)
            stale = self._gradient(trainer, policy, golds, self._stale)
            beyond = self._beyond_the_clip(policy, wrong)
            if beyond:
                stale += self._gradient(trainer, policy, beyond, self._clipped)
            biases.append(stale - on_policy)
            unclipped.append(self._gradient(trainer, policy, golds, self._unclipped) - on_policy)
            fresh.append(on_policy)
        squared, error = squared_norm(biases)
        without, error_without = squared_norm(unclipped)
        theta = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        return {
            "bias_squared": squared,
            "bias_squared_error": error,
            "unclipped_squared": without,
            "unclipped_squared_error": error_without,
            "gradient_squared": squared_norm(fresh)[0],
            "lag_distance": float((theta - trainer.snapshots[self._phi]).norm()),
        }

    def _prepared(self, policy: Policy, batch: Batch) -> tuple[list[Sample], list[Sample]]:
        """Gold responses with their log-probs under phi, and wrong ones with the weight that `clipped` wants."""
        bare = []
        for group in batch.groups:
            example = self._gold.encode(group.prompt)
            assert example is not None, "studies use tasks whose answers fit"
            none = (0.0,) * len(example.response_ids)
            bare.append(Sample(group.group_id, group.prompt.token_ids, example.response_ids, none, None, 0.0))
        golds = []
        with torch.no_grad():
            for part, logprobs in self._passes(policy, bare):
                for sample, row in zip(part.samples, logprobs.tolist(), strict=True):
                    known = tuple(row[: len(sample.response_ids)])
                    golds.append(replace(sample, behaviour_logprobs=known))
        golds.sort(key=lambda sample: sample.group_id)
        p = torch.tensor([sum(sample.behaviour_logprobs) for sample in golds]).exp()
        size = self._settings.schedule.group_size
        minus = expected_advantages(p, size)[1].tolist()
        weight = self._weight(len(golds) * size)
        wrong = []
        for group, gold, advantage in zip(batch.groups, golds, minus, strict=True):
            for trajectory, reward in zip(group.trajectories, group.rewards, strict=True):
                ids = trajectory.token_ids
                self._rewarded += reward > 0
                self._others += reward > 0 and ids != gold.response_ids
                if ids != gold.response_ids:
                    known = trajectory.behaviour_logprobs
                    wrong.append(Sample(group.group_id, gold.prompt_ids, ids, known, None, weight * advantage))
        return golds, wrong

    def _weight(self, responses: int) -> float:
        return 1.0 / (responses * self._settings.rollout.max_new_tokens)

    def _passes(self, policy: Policy, samples: Sequence[Sample]) -> Iterator[tuple[MicroBatch, Tensor]]:
        for part in policy.micro_batches(samples, self._settings.learner.micro_batch_tokens):
            yield part, target_logprobs(policy, part, self._settings.rollout.temperature)[0]

    @torch.no_grad()
    def _beyond_the_clip(self, policy: Policy, samples: Sequence[Sample]) -> list[Sample]:
        """Those of which the clip takes anything out; of the others `clipped` is 0."""
        found: list[Sample] = []
        for part, logprobs in self._passes(policy, samples):
            ratio = (logprobs - part.behaviour_logprobs).exp()
            beyond = ((ratio < self._bounds[0]) & part.response_mask).any(dim=1)
            found += [sample for sample, is_beyond in zip(part.samples, beyond.tolist(), strict=True) if is_beyond]
        return found

    @property
    def _bounds(self) -> tuple[float, float]:
        bounds = self._settings.learner.objective.ratio_bounds
        assert bounds is not None, "studies use an objective with a clip"
        return bounds

    def _stale(self, part: MicroBatch, target: Tensor, weight: float) -> Tensor:
        return closed(target, part.behaviour_logprobs, self._settings.schedule.group_size, self._bounds, weight)

    def _unclipped(self, part: MicroBatch, target: Tensor, weight: float) -> Tensor:
        return closed(target, part.behaviour_logprobs, self._settings.schedule.group_size, (0.0, math.inf), weight)

    def _fresh(self, part: MicroBatch, target: Tensor, weight: float) -> Tensor:
        return closed(target, target.detach(), self._settings.schedule.group_size, self._bounds, weight)

    def _clipped(self, part: MicroBatch, target: Tensor, _weight: float) -> Tensor:
        return clipped(target, part.behaviour_logprobs, part.advantages, self._bounds)

    def _gradient(
        self, trainer: Trainer, policy: Policy, samples: Sequence[Sample],
        loss: Callable[[MicroBatch, Tensor, float], Tensor],
    ) -> Tensor:  # fmt: skip
        """The gradient [P] of a loss over samples; the learner's own is left empty."""
        for part, logprobs in self._passes(policy, samples):
            loss(part, logprobs, self._weight(len(samples))).backward()  # type: ignore[no-untyped-call]
        taken = flat_gradient(trainer.parameters)
        for parameter in trainer.parameters:
            parameter.grad = None
        return taken
