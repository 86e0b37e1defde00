"""One RL iteration: a batch in, a report out, the version one higher.

*All-or-nothing invariant*: an optimizer update whose loss or gradient is not finite is left out and counted;
parameters and optimizer state then stay bit for bit as they were. Mini-batches in which every advantage is 0 have
no gradient: no update (so no weight decay and no momentum either), yet the version still advances.
The optimizer comes ready-made from a factory, so what it does with a gradient is no concern of this file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from offbeat.errors import InvariantError
from offbeat.learner.alignment import Attach, attached
from offbeat.learner.batches import Sample, mini_batches, samples_of, zero_advantage_groups
from offbeat.learner.checkpoint import MODEL_FILE, Position, export_policy, load_checkpoint, save_checkpoint
from offbeat.learner.drift import DriftFit, DriftMeter, StoredVersion
from offbeat.learner.layout import MicroBatch
from offbeat.learner.logprobs import plain_logprobs, target_logprobs
from offbeat.learner.lora import trained
from offbeat.learner.matmul import check_matmul_precision, matmul_precision
from offbeat.learner.mismatch import measure, spread
from offbeat.learner.objective import normaliser, objective_loss, survey
from offbeat.learner.policy import Policy
from offbeat.learner.ranks import Ranks
from offbeat.learner.rates import scheduled_share
from offbeat.learner.sharding import clip_gradients, gradient_norm
from offbeat.learner.shared_work import most_tokens, my_passes
from offbeat.learner.stepping import take_step
from offbeat.learner.tally import Drift, Update, report
from offbeat.objectives import Bounds, Tokens
from offbeat.ports import Sampling
from offbeat.records import Batch, Mismatch, StepReport
from offbeat.settings import LearnerSettings, Settings
from offbeat.settings_sections import SPLICING

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
        stored: StoredVersion | None = None,
        attach: Attach | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """`stored` gives the weights of earlier versions to measure drift against, after a resume; `ranks` the
        processes that share the work and make the same calls. Raises SettingsError for what this machine has not."""
        self.after_pass: Callable[[], None] = lambda: None
        """Called after every pass over a micro-batch, of which a step makes many."""
        check_matmul_precision(settings.learner.matmul_precision)
        rollout = settings.rollout
        self.version = version
        self.policy = policy
        self.consecutive_skips = 0
        self._ranks = ranks or Ranks()
        if settings.learner.recompute_activations:
            policy.recompute_activations()
        if self._ranks.count > 1 and settings.learner.sharding == "fsdp2":
            policy.shard(self._ranks)
        self._model_dir = model_dir
        self._settings = settings.learner
        self._sampling = Sampling(rollout.temperature, rollout.top_k, rollout.top_p)
        moving = trained(policy.model)
        self._parameters = [parameter for _, parameter in moving]
        self.optimizer = optimizer_factory(self._parameters, settings.learner)
        self._control = attached(attach, self.optimizer, settings)
        self._peak_rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._longest = rollout.max_new_tokens
        self._bound = settings.schedule.staleness_bound
        self._splices = settings.schedule.name in SPLICING
        self._drift_fit = DriftFit()
        self._meter: DriftMeter | None = None
        if settings.learner.measure_drift:
            self._meter = DriftMeter([name for name, _ in moving], self._parameters, stored, self._ranks)

    @classmethod
    def open(
        cls,
        model_dir: Path,
        settings: Settings,
        optimizer_factory: OptimizerFactory = adamw,
        attach: Attach | None = None,
    ) -> PolicyLearner:
        """A fresh learner at version 0 with the weights of a Hugging Face directory. Raises WeightsError."""
        lora, seed = settings.learner.lora, settings.run.seed
        policy = Policy.load(model_dir) if lora is None else Policy.adapted(model_dir, lora, seed)
        return cls(model_dir, policy, settings, 0, optimizer_factory, attach=attach)

    @classmethod
    def restore(
        cls,
        model_dir: Path,
        directory: Path,
        settings: Settings,
        version: int | None = None,
        optimizer_factory: OptimizerFactory = adamw,
        stored: StoredVersion | None = None,
        attach: Attach | None = None,
        ranks: Ranks | None = None,
    ) -> PolicyLearner:
        """The learner that `save` wrote into `directory`; it continues bit for bit.

        `model_dir` gives the architecture; how many processes wrote it does not matter. Raises WeightsError for damaged
        files, another architecture, or where `version` is given and the files are of another.
        """

        def made() -> PolicyLearner:
            policy = Policy.for_weights(model_dir, directory / MODEL_FILE)
            return cls(model_dir, policy, settings, 0, optimizer_factory, stored, attach, ranks)

        learner = (ranks or Ranks()).in_turn(made)  # each needs the whole policy once, to take its part
        position = load_checkpoint(directory, learner.policy, learner.optimizer, version)
        learner.version, learner.consecutive_skips = position.version, position.consecutive_skips
        learner._drift_fit = position.drift
        return learner

    def save(self, directory: Path) -> str:
        """Write weights and optimizer state, synced; return the SHA-256 of model.safetensors."""
        position = Position(self.version, self.consecutive_skips, self._drift_fit)
        return save_checkpoint(directory, self.policy, self.optimizer, position, self._ranks)

    def publish(self, directory: Path) -> str:
        """ports.Learner: the same as `save`."""
        return self.save(directory)

    def export(self, directory: Path) -> None:
        """Write a Hugging Face directory that AutoModelForCausalLM and AutoTokenizer load."""
        export_policy(directory, self.policy, self._model_dir, self._ranks)

    def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        """Log-probs [L] (temperature 1, no cut) of a response [L] under the current weights: the canary's measure."""
        return plain_logprobs(self.policy, prompt_ids, response_ids)

    def step(self, batch: Batch, projection: float = 0.0, rate: float = 1.0) -> StepReport:
        """Train on one batch in `updates_per_iteration` updates. Seconds of publishing are the caller's to add.

        The learning rate is multiplied by `rate`. Under the autopilot gradients are projected as strongly as
        `projection` in [0, 1] says; otherwise as the settings say.

        The whole batch is checked first. Raises InvariantError where its iteration is not the learner's version or
        a trajectory is not fit to train on; nothing has changed then.
        """
        started = time.perf_counter()
        if batch.iteration != self.version:
            raise InvariantError(f"a batch of iteration {batch.iteration} came to a learner of version {self.version}")
        samples = self._samples(batch)
        lags = self._drifts_to_behaviour(samples)
        learning_rate = self._set_learning_rate(rate)
        if self._control and self._settings.autopilot:
            self._control.strengthen(projection)
        with matmul_precision(self._settings.matmul_precision):
            mismatch = self._mismatch([sample for part in samples for sample in part])
            if self._settings.objective.USES_PROXIMAL and len(samples) > 1:
                samples = [self._with_proximal(part) for part in samples]
            updates = [self._update(part) for part in samples]
        self.version += 1
        drift = self._drift(lags, updates, learning_rate)
        return report(
            batch, updates, zero_advantage_groups(chain.from_iterable(samples)), learning_rate, self.consecutive_skips,
            time.perf_counter() - started, drift, mismatch,
        )  # fmt: skip

    def _samples(self, batch: Batch) -> list[list[Sample]]:
        """The samples of each update, every number checked."""
        settings = self._settings
        normalise, vocabulary = settings.advantage_is_normalised, self.policy.vocabulary
        return [
            [
                sample
                for group in part
                for sample in samples_of(
                    group, self._sampling, normalise, vocabulary, settings.baseline, batch.iteration
                )
            ]
            for part in mini_batches(batch, settings.updates_per_iteration)
        ]

    @torch.no_grad()
    def _with_proximal(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with their log-probs under the target as it is now, at the start of the iteration."""
        found: list[Sample] = []
        for batch in self._micro_batches(samples):
            logprobs, _ = target_logprobs(self.policy, batch, self._sampling.temperature)
            for sample, row in zip(batch.samples, logprobs.tolist(), strict=True):
                found.append(replace(sample, proximal_logprobs=tuple(row[: len(sample.response_ids)])))
            self.after_pass()
        return found

    def _drifts_to_behaviour(self, samples: Sequence[Sequence[Sample]]) -> tuple[float | None, ...]:
        """Up to the largest staleness of the batch."""
        oldest = max(sample.staleness for part in samples for sample in part)
        return () if self._meter is None else self._meter.to_each_lag(self.version, oldest, self._bound)

    def _mismatch(self, samples: Sequence[Sample]) -> Mismatch | None:
        """Of some trajectories, before anything moves: why their log-probs are not the target's."""
        count = self._settings.mismatch_trajectories
        if self._meter is None or self._splices or not count:
            return None
        chosen, heat = spread(samples, count), self._sampling.temperature
        return measure(self.policy, self._parameters, self._meter.of_version, chosen, heat, self.version)

    def _drift(self, lags: tuple[float | None, ...], updates: Sequence[Update], learning_rate: float) -> Drift:
        """What the iteration moved; `self.version` is already the new one."""
        if self._meter is None:
            return Drift()
        from_start = self._meter.to_version(0)
        rate = learning_rate * sum(update.rate_scale for update in updates if update.g_upd is not None)
        self._drift_fit = self._drift_fit.moved(rate, from_start)
        return Drift(self._meter.to_version(self.version - 1), from_start, lags, self._drift_fit.exponent)

    def _set_learning_rate(self, factor: float) -> float:
        settings = self._settings
        share = scheduled_share(
            self.version, settings.warmup_iterations, settings.iterations, settings.final_learning_rate_share
        )
        for group, peak in zip(self.optimizer.param_groups, self._peak_rates, strict=True):
            group["lr"] = factor * share * peak
        return float(self.optimizer.param_groups[0]["lr"])

    def _update(self, samples: Sequence[Sample]) -> Update:
        """One optimizer update, or none. Samples of zero advantage have no gradient: they are only measured."""
        tokens = sum(sample.sampled for sample in samples)
        divisor = normaliser(self._settings.loss_aggregation, tokens, len(samples), self._longest)
        update = Update()
        moving = self._micro_batches([sample for sample in samples if sample.advantage != 0.0])
        still = self._micro_batches([sample for sample in samples if sample.advantage == 0.0])
        bounds = self._survey([*moving, *still]) if self._settings.objective.SURVEYS else ()
        for batch, counted in self._mine(moving, update):
            loss = self._objective(batch, divisor, bounds, update if counted else Update())
            (loss if counted else loss * 0).backward()  # type: ignore[no-untyped-call]
            self.after_pass()
        with torch.no_grad():
            for batch, counted in self._mine(still, update):
                self._objective(batch, divisor, bounds, update if counted else Update())
                self.after_pass()
        if moving and not self.policy.sharded:
            self._ranks.add_gradients(self._parameters)
        update.merge(self._ranks.total)
        norm = gradient_norm(self._parameters, self._ranks)
        update.close(float(norm))
        if update.skipped:
            self.consecutive_skips += 1
            if self._control:
                self._control.missed()
        elif moving:
            if self._control and self._settings.align.clip == "after":
                norm = norm * self._control.control().kept
            clip_gradients(self._parameters, self._settings.max_gradient_norm, norm)
            take_step(self.optimizer, update, self._settings, self._meter)
            self.consecutive_skips = 0
        if self._control and (moving or update.skipped):
            update.alignment = self._control.last
        self.optimizer.zero_grad(set_to_none=True)
        return update

    def _mine(self, batches: Sequence[MicroBatch], update: Update) -> Iterator[tuple[MicroBatch, bool]]:
        return my_passes(batches, self._ranks, self.policy.sharded, update)

    def _micro_batches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        return self.policy.micro_batches(samples, most_tokens(self._settings.micro_batch_tokens, samples, self._ranks))

    def _tokens(self, batch: MicroBatch, logprobs: Tensor) -> Tokens:
        """With one update an iteration the target is still the proximal policy: nothing needs to be computed twice."""
        proximal = logprobs.detach() if batch.proximal_logprobs is None else batch.proximal_logprobs
        return Tokens(logprobs, proximal, batch.behaviour_logprobs, batch.advantages.unsqueeze(1), batch.response_mask)

    @torch.no_grad()
    def _survey(self, batches: Sequence[MicroBatch]) -> Bounds:
        """What the objective must know of the whole mini-batch: a forward pass more."""
        logprobs = [target_logprobs(self.policy, batch, self._sampling.temperature)[0] for batch in batches]
        return survey(self._settings.objective, map(self._tokens, batches, logprobs))

    def _objective(self, batch: MicroBatch, divisor: float, bounds: Bounds, update: Update) -> Tensor:
        settings = self._settings
        logprobs, entropy = target_logprobs(self.policy, batch, self._sampling.temperature)
        loss, statistics = objective_loss(
            settings.objective, self._tokens(batch, logprobs), settings.loss_aggregation, divisor, bounds
        )
        update.add(loss, entropy, statistics, batch.samples)
        return loss
