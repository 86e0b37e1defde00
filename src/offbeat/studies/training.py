"""A training run at exactly known staleness, in this process: sample, train, publish, in that order, on the real parts.

*Exact-staleness invariant*: the batch of step t was sampled by version t - lag_at(t), its lag in publishes; one
publish is one optimizer update. One process and one thread do everything in turn, so a cell is fixed by its data.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from offbeat.errors import EngineError, WeightsError
from offbeat.learner.batches import Sample
from offbeat.learner.logprobs import target_logprobs
from offbeat.learner.step import OptimizerFactory, PolicyLearner, adamw
from offbeat.models.gold import GoldAnswers, Limits
from offbeat.models.tokens import load_tokenizer
from offbeat.ports import Task
from offbeat.records import StepReport
from offbeat.settings import Settings
from offbeat.studies.cell import Cell, Curves
from offbeat.studies.instruments import flat
from offbeat.studies.piloted import Controls
from offbeat.studies.rollouts import Rollouts
from offbeat.tasks import make_task
from offbeat.theory.collapse import is_settled
from offbeat.theory.refresh import lag_at

EXAM_TOKENS = 8192
"""In one pass over held-out prompts."""


class Trainer:
    """The parts of one cell. `snapshots` are the parameters [P] of the versions that may still sample."""

    def __init__(
        self, cell: Cell, policy: Path, settings: Settings, optimizer_factory: OptimizerFactory = adamw
    ) -> None:
        torch.set_num_threads(1)
        self.cell = cell
        self.task: Task = make_task(settings.task, settings.run.seed)
        self.rollouts = Rollouts(policy, self.task, settings, cell.seed)
        self.learner = PolicyLearner.open(policy, settings, optimizer_factory)
        self.parameters = [p for p in self.learner.policy.model.parameters() if p.requires_grad]
        self.snapshots: dict[int, Tensor] = {}
        self.start = flat(self.parameters)
        self._exam = _exam(self.task, policy, settings)
        self._scratch = tempfile.TemporaryDirectory(prefix="offbeat-study-")
        self.publish(keep=())

    def close(self) -> None:
        self._scratch.cleanup()

    def publish(self, keep: tuple[int, ...]) -> None:
        """Hand the learner's weights to the engine as its version; forget all but those to `keep`."""
        file = Path(self._scratch.name) / "model.safetensors"
        safetensors.torch.save_file(self.learner.policy.weights(), file, metadata={"format": "pt"})
        self.rollouts.take_up(self.learner.version, file, keep)
        self.snapshots = {v: s for v, s in self.snapshots.items() if v in keep}
        self.snapshots[self.learner.version] = flat(self.parameters)

    def go_on_from(self, policy: Path, directory: Path, settings: Settings) -> None:
        """Take the learner that was saved in `directory` up again, at the learning rate of `settings`."""
        self.learner = PolicyLearner.restore(policy, directory, settings)
        self.parameters = [p for p in self.learner.policy.model.parameters() if p.requires_grad]

    def step(self, lag: int) -> StepReport:
        """Train on a batch that is `lag` publishes old."""
        iteration = self.learner.version
        return self.learner.step(self.rollouts.batch(iteration, iteration - lag))

    @torch.no_grad()
    def exact_match(self) -> float:
        """Expected exact match of a sample (temperature 1) on held-out prompts: the mean probability of gold."""
        policy, total = self.learner.policy, 0.0
        for part in policy.micro_batches(self._exam, EXAM_TOKENS):
            logprobs, _ = target_logprobs(policy, part, temperature=1.0)
            total += float(logprobs.double().sum(1).exp().sum())
        return total / self.cell.scale.held_out


def _exam(task: Task, policy: Path, settings: Settings) -> list[Sample]:
    """Gold responses to held-out prompts, of those that fit: the others cannot be answered."""
    limits = Limits(settings.rollout.context, settings.rollout.max_new_tokens)
    gold = GoldAnswers(task, load_tokenizer(policy), limits)
    examples = filter(None, map(gold.encode, task.held_out(settings.task.held_out)))
    unknown = (0.0,) * settings.rollout.max_new_tokens
    return [
        Sample(i, x.prompt_ids, x.response_ids, unknown[: len(x.response_ids)], None, 0.0)
        for i, x in enumerate(examples)
    ]


def train(cell: Cell, policy: Path, say: Callable[[int, int], None]) -> Curves:
    """Run a cell to its end; `say` hears steps done of how many. Ends early where numbers stop being finite, and where
    the cell asks for no more than its collapse once that is settled."""
    settings = cell.settings
    controls = Controls(cell)
    trainer = Trainer(cell, policy, settings, controls.optimizer)
    try:
        return _curves(cell, trainer, controls, say)
    finally:
        trainer.close()


def _curves(cell: Cell, trainer: Trainer, controls: Controls, say: Callable[[int, int], None]) -> Curves:
    assert controls.cosines is not None
    found = Curves(evaluations=[(0, trainer.exact_match())])
    for step in range(cell.steps):
        lag = lag_at(step, controls.levers.staleness, cell.refresh)
        before, behaviour = trainer.snapshots[step], trainer.snapshots[step - lag]
        try:
            report = trainer.step(lag)
            trainer.publish(keep=tuple(range(max(0, step + 1 - cell.staleness), step + 1)))
        except (EngineError, WeightsError):
            found.broke = step
            break
        cosine = controls.cosines.take()[1]
        _note(found, report, cosine)
        controls.saw(math.sqrt(2.0 * max(0.0, report.policy_lag_kl)), cosine)
        after = trainer.snapshots[step + 1]
        found.lag_distance.append(float((before - behaviour).norm()))
        found.update_norm.append(float((after - before).norm()))
        found.drift.append(float((after - trainer.start).norm()))
        over = step + 1 == cell.steps or (cell.until_collapse and is_settled(found.reward))
        if (step + 1) % cell.scale.evaluate_every == 0 or over:
            found.evaluations.append((step + 1, trainer.exact_match()))
        say(step + 1, cell.steps)
        if over:
            break
    found.control = controls.summary()
    return found


def _note(found: Curves, report: StepReport, cosine: float | None) -> None:
    found.reward.append(report.reward_mean)
    found.gradient_norm.append(report.gradient_norm)
    found.entropy.append(report.entropy)
    found.clip_share.append(report.clip_share)
    found.lag_kl.append(report.policy_lag_kl)
    found.cosine.append(cosine)
