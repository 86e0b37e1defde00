"""Batches sampled on order: these prompts, under that version, on the real engine, scored by the real task.

*Exact-lag invariant*: a batch holds trajectories of exactly the version asked for (C1, kept by the engine), and what
it holds depends on the seed, the iteration and the version's weights alone. Knows no learner.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from offbeat.eventtime.streams import stream_seed
from offbeat.models.tokens import decode_response, encode_prompt, load_tokenizer
from offbeat.ports import Completion, Request, Sampling, Task
from offbeat.records import Batch, Group, Prompt, Trajectory
from offbeat.rollout.engine import Engine
from offbeat.settings import Settings

PROMPTS_A_SEED = 1 << 32
"""Training prompts of one seed begin so far from those of the next."""


class Rollouts:
    """The engine of one cell with the versions it was given; groups of `settings.schedule` sizes."""

    def __init__(self, policy: Path, task: Task, settings: Settings, seed: int) -> None:
        rollout, schedule = settings.rollout, settings.schedule
        self._engine = Engine(policy, rollout.slots, rollout.context)
        self._tokenizer = load_tokenizer(policy)
        self._task = task
        self._seed = seed
        self._sampling = Sampling(rollout.temperature, rollout.top_k, rollout.top_p)
        self._new_tokens = rollout.max_new_tokens
        self._group_size = schedule.group_size
        self._groups = schedule.train_batch_size // schedule.group_size

    def take_up(self, version: int, weights: Path, keep: Iterable[int]) -> None:
        """Load a version from its file and forget all but those to `keep`."""
        self._engine.load(version, weights)
        for old in set(self._engine.versions) - {version, *keep}:
            self._engine.unload(old)

    def batch(self, iteration: int, version: int, stream: str = "train", groups: int | None = None) -> Batch:
        """Groups of prompts that only this (iteration, stream) draws, sampled under `version`.

        The same iteration under two versions has the same prompts and the same random numbers: what differs is what
        the versions differ in. Raises EngineError where logits are not finite.
        """
        count = groups or self._groups
        first = self._seed * PROMPTS_A_SEED + stream_seed(0, stream, iteration) % (PROMPTS_A_SEED - count)
        prompts = [self._encoded(self._task.prompt(first + i)) for i in range(count)]
        seeds = [stream_seed(self._seed, "trajectory", stream, iteration, i) for i in range(count * self._group_size)]
        for i, seed in enumerate(seeds):
            ids = prompts[i // self._group_size].token_ids
            self._engine.submit(Request(i, version, ids, seed, self._new_tokens, self._sampling))
        done: dict[int, Completion] = {}
        while len(done) < len(seeds):
            done |= {completion.request_id: completion for completion in self._engine.step()}
        return Batch(iteration, tuple(self._group(g, prompt, done) for g, prompt in enumerate(prompts)))

    def _encoded(self, prompt: Prompt) -> Prompt:
        ids = tuple(encode_prompt(self._tokenizer, prompt.text))
        return Prompt(prompt.prompt_id, prompt.dataset, prompt.text, prompt.answer, ids)

    def _group(self, group_id: int, prompt: Prompt, done: dict[int, Completion]) -> Group:
        trajectories, rewards = [], []
        for i in range(group_id * self._group_size, (group_id + 1) * self._group_size):
            text = decode_response(self._tokenizer, done[i].token_ids)
            trajectories.append(Trajectory(i, 0, done[i].spans, done[i].finish_reason, text))
            rewards.append(self._task.reward(prompt, text))
        return Group(group_id, prompt, tuple(trajectories), tuple(rewards))
