"""One RL iteration: a batch in, a report out, the version one higher.

*All-or-nothing invariant*: an optimizer update whose loss or gradient is not finite is left out and counted;
parameters and optimizer state then stay bit for bit as they were. Mini-batches in which every advantage is 0 have
no gradient: no update (so no weight decay and no momentum either), yet the version still advances.
The optimizer comes ready-made from a factory, so what it does with a gradient is no concern of this file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from offbeat.errors import InvariantError
from offbeat.learner.alignment import Attach
from offbeat.learner.batches import Sample, degenerate_groups, mini_batches, samples_of
from offbeat.learner.checkpoint import Position, export_policy, load_checkpoint, save_checkpoint
from offbeat.learner.layout import MicroBatch, micro_batches
from offbeat.learner.logprobs import plain_logprobs, target_logprobs
from offbeat.learner.objective import grpo_objective, normaliser
from offbeat.learner.policy import Policy
from offbeat.learner.tally import Update, report
from offbeat.ports import Sampling
from offbeat.records import Batch, StepReport
from offbeat.settings import LearnerSettings, Settings

OptimizerFactory = Callable[[Iterable[nn.Parameter], LearnerSettings], torch.optim.Optimizer]


def adamw(parameters: Iterable[nn.Parameter], settings: LearnerSettings) -> torch.optim.Optimizer:
    """The default optimizer: AdamW (arXiv 1711.05101), betas (0.9, 0.999), in one fused kernel."""
    return torch.optim.AdamW(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True)


class PolicyLearner:
    """The target policy and its optimizer (ports.Learner). `version` is the number of publishes before it."""

    def __init__(
        self,
        model_dir: Path,
        policy: Policy,
        settings: Settings,
        version: int = 0,
        optimizer_factory: OptimizerFactory = adamw,
        attach: Attach | None = None,
    ) -> None:
        rollout = settings.rollout
        self.version = version
        self.policy = policy
        self.consecutive_skips = 0
        self._model_dir = model_dir
        self._settings = settings.learner
        self._sampling = Sampling(rollout.temperature, rollout.top_k, rollout.top_p)
        self._parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.optimizer = optimizer_factory(self._parameters, settings.learner)
        self._control = None
        if settings.learner.align.mode != "off":
            if attach is None:
                raise InvariantError("learner.align is on, but the learner was given nothing that controls alignment")
            self._control = attach(self.optimizer, settings)
        self._peak_rates = [float(group["lr"]) for group in self.optimizer.param_groups]

    @classmethod
    def open(
        cls,
        model_dir: Path,
        settings: Settings,
        optimizer_factory: OptimizerFactory = adamw,
        attach: Attach | None = None,
    ) -> PolicyLearner:
        """A fresh learner at version 0 with the weights of a Hugging Face directory. Raises WeightsError."""
        return cls(model_dir, Policy.load(model_dir), settings, 0, optimizer_factory, attach)

    @classmethod
    def restore(
        cls,
        model_dir: Path,
        directory: Path,
        settings: Settings,
        version: int | None = None,
        optimizer_factory: OptimizerFactory = adamw,
        attach: Attach | None = None,
    ) -> PolicyLearner:
        """The learner that `save` wrote into `directory`; it continues bit for bit.

        `model_dir` gives the architecture. Raises WeightsError for damaged files, another architecture, or where
        `version` is given and the files are of another.
        """
        learner = cls(model_dir, Policy.blank(model_dir), settings, 0, optimizer_factory, attach)
        position = load_checkpoint(directory, learner.policy, learner.optimizer, version)
        learner.version, learner.consecutive_skips = position.version, position.consecutive_skips
        return learner

    def save(self, directory: Path) -> str:
        """Write weights and optimizer state, synced; return the SHA-256 of model.safetensors."""
        return save_checkpoint(directory, self.policy, self.optimizer, Position(self.version, self.consecutive_skips))

    def publish(self, directory: Path) -> str:
        """ports.Learner: the same as `save`."""
        return self.save(directory)

    def export(self, directory: Path) -> None:
        """Write a Hugging Face directory that AutoModelForCausalLM and AutoTokenizer load."""
        export_policy(directory, self.policy, self._model_dir)

    def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        """Log-probs [L] (temperature 1, no cut) of a response [L] under the current weights: the canary's measure."""
        return plain_logprobs(self.policy, prompt_ids, response_ids)

    def step(self, batch: Batch) -> StepReport:
        """Train on one batch in `updates_per_iteration` updates. Seconds of publishing are the caller's to add.

        The whole batch is checked first. Raises InvariantError where its iteration is not the learner's version or
        a trajectory is not fit to train on; nothing has changed then.
        """
        started = time.perf_counter()
        if batch.iteration != self.version:
            raise InvariantError(
                f"the batch of iteration {batch.iteration} came to a learner of version {self.version}"
            )
        settings = self._settings
        parts = mini_batches(batch, settings.updates_per_iteration)
        samples = [
            [
                sample
                for group in part
                for sample in samples_of(group, self._sampling, settings.normalise_advantage, self.policy.vocabulary)
            ]
            for part in parts
        ]
        learning_rate = self._set_learning_rate()
        updates = [self._update(part) for part in samples]
        self.version += 1
        return report(
            batch, updates, degenerate_groups(batch.groups), learning_rate, self.consecutive_skips,
            time.perf_counter() - started,
        )  # fmt: skip

    def _set_learning_rate(self) -> float:
        """Linear warm-up times linear decay to `final_learning_rate_share` of the rate at the last iteration."""
        warmup, final = self._settings.warmup_iterations, self._settings.final_learning_rate_share
        share = min(1.0, (self.version + 1) / warmup) if warmup else 1.0
        share *= 1 - (1 - final) * min(1.0, self.version / max(1, self._settings.iterations - 1))
        for group, peak in zip(self.optimizer.param_groups, self._peak_rates, strict=True):
            group["lr"] = share * peak
        return float(self.optimizer.param_groups[0]["lr"])

    def _update(self, samples: Sequence[Sample]) -> Update:
        """One optimizer update, or none. Samples of zero advantage have no gradient: they are only measured."""
        divisor = normaliser(
            self._settings.aggregation, sum(len(sample.response_ids) for sample in samples), len(samples)
        )
        update = Update()
        moving = [sample for sample in samples if sample.advantage != 0.0]
        for batch in self._micro_batches(moving):
            self._objective(batch, divisor, update).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for batch in self._micro_batches([sample for sample in samples if sample.advantage == 0.0]):
                self._objective(batch, divisor, update)
        norm = torch.nn.utils.get_total_norm([p.grad for p in self._parameters if p.grad is not None])
        update.close(float(norm))
        if update.skipped:
            self.consecutive_skips += 1
            if self._control:
                self._control.missed()
        elif moving:
            if self._control and self._settings.align.clip == "after":
                norm = norm * self._control.control().kept
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._settings.max_gradient_norm, norm)
            self.optimizer.step()
            self.consecutive_skips = 0
        if self._control and (moving or update.skipped):
            update.alignment = self._control.last
        self.optimizer.zero_grad(set_to_none=True)
        return update

    def _micro_batches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        return micro_batches(samples, self._settings.micro_batch_tokens, self.policy.shares_prompts)

    def _objective(self, batch: MicroBatch, divisor: float, update: Update) -> Tensor:
        settings = self._settings
        logprobs, entropy = target_logprobs(self.policy, batch, self._sampling.temperature)
        loss, statistics = grpo_objective(
            logprobs,
            batch.behaviour_logprobs,
            batch.advantages,
            batch.response_mask,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            aggregation=settings.aggregation,
            normaliser=divisor,
        )
        update.add(loss, entropy, statistics)
        return loss
