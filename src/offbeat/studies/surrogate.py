"""H(theta, phi): the gradient at theta of the surrogate over data that phi sampled, and its bias, measured directly.

*Common-numbers rule*: stale and fresh data are sampled for the same prompts with the same random numbers, so what
differs between them is what the two policies differ in, and noise shrinks with the bias itself. The squared norm of
the bias is estimated from products of independent batches, so noise adds nothing to it on average.
Source: arXiv 2607.01083 (the map and its bias); how to estimate it is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.learner.step import PolicyLearner
from offbeat.records import Batch
from offbeat.settings import LearnerSettings, Settings
from offbeat.studies.cell import Cell
from offbeat.studies.instruments import flat, flat_gradient
from offbeat.studies.training import Trainer

MEASURED = ("bias_squared", "bias_squared_error", "gradient_squared", "lag_distance")


class GradientTaker(torch.optim.Optimizer):
    """Takes each gradient [P] instead of a step: parameters stay as they are."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.0})
        self.taken: Tensor | None = None

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.taken = flat_gradient([p for group in self.param_groups for p in group["params"]])


class Probe:
    """H of a learner's own objective at its present parameters: the learner's step with nothing done at its end."""

    def __init__(self, model_dir: Path, learner: PolicyLearner, settings: Settings) -> None:
        unclipped = settings.model_copy(
            update={"learner": settings.learner.model_copy(update={"max_gradient_norm": 1e30})}
        )
        takers: list[GradientTaker] = []

        def factory(parameters: Iterable[nn.Parameter], _settings: LearnerSettings) -> GradientTaker:
            takers.append(GradientTaker(parameters))
            return takers[0]

        self._learner = PolicyLearner(model_dir, learner.policy, unclipped, 0, factory)
        self._taker = takers[0]

    def gradient(self, batch: Batch) -> Tensor:
        """H [P] on a batch, to be minimised; zeros where every advantage is 0."""
        self._taker.taken = None
        self._learner.step(Batch(self._learner.version, batch.groups))
        taken = self._taker.taken
        if taken is None:
            return torch.zeros_like(flat([p for p in self._learner.policy.model.parameters() if p.requires_grad]))
        return taken


def squared_norm(vectors: Sequence[Tensor]) -> tuple[float, float]:
    """||E v||^2 without bias from independent vectors [K of P], K >= 3, and its standard error.

    The estimate is the mean product of two different vectors; it may come out negative. The error is the jackknife's
    (Tukey 1958), leaving out one vector at a time; where noise is all there is it is sqrt(2) too large.
    """
    stacked = torch.stack(list(vectors)).double()
    products = stacked @ stacked.T
    products.fill_diagonal_(0.0)
    count, total, each = len(vectors), float(products.sum()), products.sum(0)
    without = (total - 2 * each) / ((count - 1) * (count - 2))
    error = math.sqrt((count - 1) / count * float((without - without.mean()).square().sum()))
    return total / (count * (count - 1)), error


def bias(cell: Cell, policy: Path, say: Callable[[int, int], None]) -> dict[str, Any]:
    """Follow one cycle of a cyclic refresh and measure the bias at each staleness of `options["stalenesses"]`.

    `approach` sync steps at `approach_rate` lead to phi; then up to `cell.staleness` updates at the cell's rate follow
    on data of phi. At each S the bias ||H(theta, phi) - H(theta, theta)|| is estimated from `batches` pairs of
    batches of `groups` groups. Lists are by S: bias_squared and bias_squared_error (its standard error),
    gradient_squared (of H(theta, theta)), lag_distance ||theta - phi||.
    """
    options = cell.options
    approach, stalenesses = int(options["approach"]), [int(s) for s in options["stalenesses"]]
    settings = cell.scale.settings(float(options["approach_rate"]), approach + cell.staleness)
    trainer = Trainer(cell, policy, settings)
    steps, done = approach + cell.staleness + len(stalenesses) * int(options["batches"]), 0
    found: dict[str, Any] = {name: [] for name in MEASURED}
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
                _measure(trainer, Probe(policy, trainer.learner, settings), approach, options, found)
                done += int(options["batches"])
            say(done, steps)
    finally:
        trainer.close()
    return found


def _measure(trainer: Trainer, probe: Probe, phi: int, options: dict[str, Any], found: dict[str, Any]) -> None:
    theta = trainer.learner.version
    differences, fresh_gradients = [], []
    for k in range(int(options["batches"])):
        stream, groups = f"measure-{theta}", int(options["groups"])
        pair = [probe.gradient(trainer.rollouts.batch(k, version, stream, groups)) for version in (phi, theta)]
        differences.append(pair[0] - pair[1])
        fresh_gradients.append(pair[1])
    squared, error = squared_norm(differences)
    found["bias_squared"].append(squared)
    found["bias_squared_error"].append(error)
    found["gradient_squared"].append(squared_norm(fresh_gradients)[0])
    distance = float((trainer.snapshots[theta] - trainer.snapshots[phi]).norm())
    found["lag_distance"].append(distance)
