"""Claim: with `learner.matmul_precision = bfloat16` a learner's step on SmolLM2-135M takes about 70 % of the
time it takes in float32, on a processor that multiplies bfloat16 matrices; and what that costs in exactness.

Two learners of the same version step in turn on the same batch: prompts of the settings' task, responses that the
built-in engine samples, rewards that are drawn. Printed: what the responses cost, medians, the median of the paired
ratios, how far apart their gradients are, and how far the log-probs of the sampled tokens are from those stated by the
engine (float32).

    offbeat models get smollm2-135m
    python runs/learner_precision.py examples/smollm2_local.toml --steps 7
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from instrument_cost import aged
from torch import Tensor, nn

from offbeat.learner.logprobs import target_logprobs
from offbeat.learner.matmul import matmul_precision
from offbeat.learner.mismatch import gap
from offbeat.learner.step import PolicyLearner, adamw
from offbeat.models.prompts import encoded_prompt
from offbeat.models.tokens import load_tokenizer
from offbeat.ports import Completion, Request
from offbeat.records import Batch, Group, Trajectory
from offbeat.rollout.engine import Engine
from offbeat.settings import LearnerSettings, Settings, load_settings
from offbeat.tasks import make_task

PRECISIONS = ("float32", "bfloat16")


def sampled(settings: Settings, model: Path) -> Batch:
    """Responses of version 0 to a batch of prompts. Rewards are drawn, so that every group has something to teach."""
    schedule, rollout, rng = settings.schedule, settings.rollout, random.Random(0)
    size, count = schedule.group_size, schedule.train_batch_size // schedule.group_size
    tokenizer, task = load_tokenizer(model), make_task(settings.task, settings.run.seed)
    prompts = [encoded_prompt(tokenizer, task, number) for number in range(count)]
    engine = Engine(model, slots=rollout.slots, context=rollout.context)
    engine.load(0, model / "model.safetensors")
    for number in range(count * size):
        engine.submit(Request(number, 0, prompts[number // size].token_ids, number, rollout.max_new_tokens))
    done: dict[int, Completion] = {}
    started = time.perf_counter()
    while engine.decoded():
        done |= {each.request_id: each for each in engine.step()}
    tokens, took = sum(len(each.token_ids) for each in done.values()), time.perf_counter() - started
    print(f"{len(done)} responses, {rollout.slots} at a time, {tokens} tokens: {took:.2f} s", flush=True)
    groups = []
    for number, prompt in enumerate(prompts):
        own = [done[number * size + i] for i in range(size)]
        members = tuple(Trajectory(each.request_id, 0, each.spans, each.finish_reason) for each in own)
        rewards = (0.0, 1.0, *(float(rng.random() < 0.5) for _ in own[2:]))
        groups.append(Group(number, prompt, members, rewards))
    return Batch(0, tuple(groups))


class Arm:
    """A learner, what its steps took, and the gradient of its first."""

    def __init__(self, settings: Settings, model: Path, precision: str) -> None:
        learner = settings.learner.model_copy(update={"matmul_precision": precision})
        self.gradient: Tensor | None = None
        self.learner = PolicyLearner.open(model, settings.model_copy(update={"learner": learner}), self._optimizer)
        self.seconds: list[float] = []

    def step(self, batch: Batch) -> None:
        started = time.perf_counter()
        self.learner.step(aged(batch.groups, self.learner.version, lambda number: 1))
        self.seconds.append(time.perf_counter() - started)

    def _optimizer(self, parameters: Iterable[nn.Parameter], settings: LearnerSettings) -> torch.optim.Optimizer:
        optimizer = adamw(parameters, settings)
        optimizer.register_step_pre_hook(self._keep)
        return optimizer

    def _keep(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.gradient is None:
            of = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
            self.gradient = torch.cat([gradient.flatten() for gradient in of])


def gaps(learner: PolicyLearner, batch: Batch, temperature: float) -> dict[str, str]:
    """Of the log-probs the engine stated to the learner's own, by precision; before anything is learnt."""
    samples = [sample for part in learner._samples(batch) for sample in part]
    batches = learner.policy.micro_batches(samples, 4096)
    stated = [each for micro in batches for each in micro.behaviour_logprobs[micro.response_mask].tolist()]
    found = {}
    for precision in PRECISIONS:
        with torch.no_grad(), matmul_precision(precision):
            own = [target_logprobs(learner.policy, micro, temperature)[0][micro.response_mask] for micro in batches]
        apart = gap(stated, torch.cat(own).tolist())
        found[precision] = f"mean {apart.mean:.2g}, p99 {apart.p99:.2g}, beyond .1: {apart.beyond:.3f}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, help="settings with model.path")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="section.key=value")
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings = load_settings(given.config, given.overrides)
    model = Path(settings.model.path)
    batch = sampled(settings, model)
    arms = {precision: Arm(settings, model, precision) for precision in PRECISIONS}
    print(f"from stated log-probs: {gaps(arms['float32'].learner, batch, settings.rollout.temperature)}", flush=True)
    for _ in range(given.steps + 1):
        for arm in arms.values():
            arm.step(batch)
    exact, rounded = (arms[precision] for precision in PRECISIONS)
    assert exact.gradient is not None
    assert rounded.gradient is not None
    cosine = torch.nn.functional.cosine_similarity(exact.gradient, rounded.gradient, dim=0)
    print(f"gradients: cosine {cosine:.5f}, norms {exact.gradient.norm():.4g} and {rounded.gradient.norm():.4g}")
    ratios = [ours / theirs for ours, theirs in zip(rounded.seconds[1:], exact.seconds[1:], strict=True)]
    for precision, arm in arms.items():
        print(f"{precision:9} {statistics.median(arm.seconds[1:]):.2f} s a step")
    print(f"bfloat16 over float32: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
