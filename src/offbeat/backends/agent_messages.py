"""What the main process and the process of the episodes say to each other.

main -> agents  AgentsHello, RunEpisode, AbortEpisodes, TurnIs
agents -> main  AgentsUp, AskTurn, EpisodeIs, EpisodeRaised, AgentsBeat, WorkerFailed

An episode is a trajectory in the making: `trajectory_id` below 0 is one of an evaluation, whose `attempt` is its round.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from offbeat.backends.messages import WorkerFailed
from offbeat.records import FinishReason, Prompt, Span


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class AgentsHello(_Message, frozen=True):
    run_directory: str
    settings: dict[str, Any]


class RunEpisode(_Message, frozen=True):
    """Begin an episode whose turns are all answered by `version`."""

    trajectory_id: int
    attempt: int
    version: int
    prompt: Prompt


class AbortEpisodes(_Message, frozen=True):
    """Forget these, whatever they are doing; unknown ids are ignored."""

    trajectory_ids: tuple[int, ...]


class TurnIs(_Message, frozen=True):
    """The policy's answer to AskTurn."""

    trajectory_id: int
    attempt: int
    turn: int
    span: Span
    finish_reason: FinishReason


class AgentsUp(_Message, frozen=True):
    pass


class AskTurn(_Message, frozen=True):
    """`context_ids` [P]: prompt and everything since, to be gone on with."""

    trajectory_id: int
    attempt: int
    turn: int
    context_ids: tuple[int, ...]
    max_new_tokens: int


class EpisodeIs(_Message, frozen=True):
    """An episode has ended: all its tokens after the prompt as one span, those given between turns masked."""

    trajectory_id: int
    attempt: int
    span: Span
    finish_reason: FinishReason
    reward: float


class EpisodeRaised(_Message, frozen=True):
    trajectory_id: int
    attempt: int
    reason: str


class AgentsBeat(_Message, frozen=True):
    """The process listens: no episode keeps it from it."""


ToAgents: TypeAlias = AgentsHello | RunEpisode | AbortEpisodes | TurnIs
FromAgents: TypeAlias = AgentsUp | AskTurn | EpisodeIs | EpisodeRaised | AgentsBeat | WorkerFailed
