"""Tasks: where prompts come from and what a response is worth.

`make_task` is the registry. Each task is one versioned file, imported only when asked for, so importing this room is
cheap. Invariants: a task is a function of its settings and seed, so every process that makes it holds the same one; the
user's own code runs in `import_reward`, `reward`, `validate` and `episode` alone.
"""

from __future__ import annotations

from importlib.util import find_spec

from offbeat.errors import TaskError
from offbeat.ports import Task
from offbeat.settings import (
    AdditionTask,
    CountingTask,
    EpisodesTask,
    JsonlTask,
    PythonToolTask,
    ReasoningGymTask,
    RunningSumTask,
    TaskSettings,
    TextArenaTask,
    VerifiersTask,
)
from offbeat.task_settings import EPISODIC

REVISIONS = {
    "running-sum": "running_sum_v0",
    "counting": "counting_v1",
    "addition": "addition_v0",
    "reasoning-gym": "reasoning_gym_v0",
    "jsonl": "jsonl_v0",
    "python-tool": "python_tool_v0",
    "episodes": "episodes_v0",
    "textarena": "textarena_v0",
    "verifiers": "verifiers_v0",
}
"""The file behind each task name. It changes whenever prompts, answers or rewards do: part of any cache key."""


def make_task(settings: TaskSettings, seed: int) -> Task:
    """The task these settings name. Raises TaskError, in one line, where its prompts or reward cannot be had."""
    match settings:
        case RunningSumTask():
            from offbeat.tasks.running_sum_v0 import running_sum

            return running_sum(settings, seed)
        case CountingTask():
            from offbeat.tasks.counting_v1 import counting

            return counting(settings, seed)
        case AdditionTask():
            from offbeat.tasks.addition_v0 import Addition

            return Addition(settings, seed)
        case ReasoningGymTask():
            from offbeat.tasks.reasoning_gym_v0 import ReasoningGym

            return ReasoningGym(settings, seed)
        case JsonlTask():
            from offbeat.tasks.jsonl_v0 import Jsonl

            return Jsonl(settings, seed)
        case PythonToolTask():
            from offbeat.tasks.python_tool_v0 import PythonTool

            return PythonTool(settings, seed)
        case EpisodesTask():
            from offbeat.tasks.episodes_v0 import Episodes

            return Episodes(settings, seed)
        case TextArenaTask():
            from offbeat.tasks.textarena_v0 import TextArena

            return TextArena(settings, seed)
        case VerifiersTask():
            from offbeat.tasks.verifiers_v0 import Verifiers

            return Verifiers(settings, seed)


def import_reward(settings: TaskSettings) -> None:
    """Import the user's reward or episode function, where these settings name one, and see that what episodes need is
    there. Raises TaskError.

    It may print, hang or end the process: for workers only, which call it before they trust the task.
    """
    if settings.name in EPISODIC:
        missing = [name for name in ("starlette", "uvicorn", "httpx") if find_spec(name) is None]
        if missing:
            raise TaskError(
                f"task.name = {settings.name!r}: {missing[0]} is not installed; run pip install 'offbeat[agents]'"
            )
    if isinstance(settings, JsonlTask) and settings.reward:
        from offbeat.tasks.reward_function import find_reward

        find_reward(settings.reward)
    elif isinstance(settings, EpisodesTask):
        from offbeat.tasks.reward_function import find_episode

        find_episode(settings.episode)
