"""episodes: prompts and answers from the user's file, played by the user's coroutine function.

The function gets prompt, answer and an `Agent`, talks with the policy over as many turns as it likes, and returns the
reward. What it says to the policy is context; what the policy says is trained on.
A change of prompts, answers or rewards makes a new file (v1), never a new meaning of this one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from offbeat.ports import Agent
from offbeat.records import Prompt
from offbeat.settings import EpisodesTask, JsonlTask
from offbeat.tasks.jsonl_v0 import Jsonl
from offbeat.tasks.reward_function import EpisodeFunction, find_episode


class Episodes(Jsonl):
    """Drawn as jsonl draws. The user's code is imported by the first episode and not before."""

    name = "episodes"

    def __init__(self, settings: EpisodesTask, seed: int) -> None:
        super().__init__(JsonlTask(file=settings.file, held_out=settings.held_out), seed)
        self._episode = settings.episode

    async def episode(self, prompt: Prompt, agent: Agent) -> float:
        return await self._play(prompt.text, prompt.answer, agent)

    def validate(self, calling: Callable[[Prompt, str], None] | None = None) -> None:
        """There is no reward of a text to be tried: only an episode has one."""
        find_episode(self._episode)

    @cached_property
    def _play(self) -> EpisodeFunction:
        return find_episode(self._episode)
