"""Settings of tasks: one section a task, told apart by `task.name`. Knows no prompt and no reward."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST = 2**63 - 1
"""What a message, a log and a seed can carry."""
Positive = Annotated[int, Field(gt=0, le=MOST)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
HeldOut = Annotated[int, Field(gt=0, le=100_000)]
"""Prompts of an exam, all of which are drawn before a run begins."""


class Section(BaseModel):
    """Frozen; unknown keys and numbers that are not finite are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RunningSumTask(Section):
    """Add a list of numbers, writing every partial sum. The number of terms is heavy-tailed."""

    name: Literal["running-sum"] = "running-sum"
    min_terms: int = Field(3, ge=2, le=52)
    max_terms: int = Field(40, ge=2, le=52)
    tail: float = Field(3.0, gt=1, le=10)
    """Exponent of the number of terms n: P(n) is proportional to n^-tail, min_terms <= n <= max_terms."""
    max_term: int = Field(9, ge=1, le=999)
    held_out: HeldOut = 512
    reward_seconds: Seconds = 10.0


class CountingTask(Section):
    """Count on from a number in equal steps, as often as the label says. The number of numbers is heavy-tailed."""

    name: Literal["counting"] = "counting"
    min_count: int = Field(3, ge=1, le=52)
    max_count: int = Field(40, ge=1, le=52)
    tail: float = Field(3.5, gt=1, le=10)
    """Exponent of the number of numbers n in the answer: P(n) ~ n^-tail, min_count <= n <= max_count."""
    max_start: int = Field(99, ge=1, le=9999)
    max_step: int = Field(3, ge=1, le=999)
    held_out: HeldOut = 512
    reward_seconds: Seconds = 10.0


class AdditionTask(Section):
    """Add two numbers of `digits` digits."""

    name: Literal["addition"] = "addition"
    digits: int = Field(3, ge=1, le=8)
    held_out: HeldOut = 512
    reward_seconds: Seconds = 10.0


class ReasoningGymTask(Section):
    """Any reasoning-gym dataset by name, with its own options."""

    name: Literal["reasoning-gym"] = "reasoning-gym"
    dataset: str
    options: dict[str, Any] = {}
    system: str = ""
    """System turn before every prompt, where the model has a chat template."""
    held_out: HeldOut = 128
    reward_seconds: Seconds = 10.0


class JsonlTask(Section):
    """A file of {"prompt": ..., "answer": ...} lines and a reward function `module:function(prompt, answer, response)`.

    `reward` empty means exact match of the stripped response with the answer; `math-verify` that both are the same
    mathematical expression.
    """

    name: Literal["jsonl"] = "jsonl"
    file: str
    reward: str = ""
    system: str = ""
    """System turn before every prompt, where the model has a chat template."""
    held_out: HeldOut = 64
    reward_seconds: Seconds = 10.0


class PythonToolTask(Section):
    """An expression of whole numbers that is too large for the head, and a Python tool: an episode of several turns."""

    name: Literal["python-tool"] = "python-tool"
    digits: int = Field(2, ge=1, le=6)
    most_calls: int = Field(2, ge=1, le=16)
    """Calls of the tool in one episode; a further one ends it."""
    tool_seconds: Seconds = 5.0
    held_out: HeldOut = 64
    reward_seconds: Seconds = 30.0


class EpisodesTask(Section):
    """A file as that of jsonl, and `episode`: a coroutine function `module:function(prompt, answer, agent)` that plays
    one episode and returns its reward. `reward_seconds` is how long it may keep others from running."""

    name: Literal["episodes"] = "episodes"
    file: str
    episode: str
    held_out: HeldOut = 64
    reward_seconds: Seconds = 30.0


class TextArenaTask(Section):
    """A textarena game for one player by name, with its own options. There are no gold answers: give a model.path."""

    name: Literal["textarena"] = "textarena"
    environment: str
    options: dict[str, Any] = {}
    held_out: HeldOut = 32
    reward_seconds: Seconds = 30.0


class VerifiersTask(Section):
    """An environment of `verifiers` by name, with its own options. There are no gold answers: give a model.path."""

    name: Literal["verifiers"] = "verifiers"
    environment: str
    options: dict[str, Any] = {}
    held_out: HeldOut = 32
    reward_seconds: Seconds = 30.0


TASKS = (
    "running-sum",
    "counting",
    "addition",
    "reasoning-gym",
    "jsonl",
    "python-tool",
    "episodes",
    "textarena",
    "verifiers",
)
EPISODIC = frozenset({"python-tool", "episodes", "textarena", "verifiers"})
"""Tasks whose trajectories are episodes of several turns."""

TaskSettings = Annotated[
    RunningSumTask
    | CountingTask
    | AdditionTask
    | ReasoningGymTask
    | JsonlTask
    | PythonToolTask
    | EpisodesTask
    | TextArenaTask
    | VerifiersTask,
    Field(discriminator="name"),
]
