"""Finds the user's reward or episode function, `module:function`, also in the current directory.

This file runs the user's module by importing it and does not know what it computes.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from offbeat.errors import TaskError
from offbeat.ports import Agent
from offbeat.tasks.verdicts import one_line

RewardFunction = Callable[[str, str, str], float]
BUILT_IN = {"math-verify": "offbeat.tasks.math_reward:score"}
"""Rewards that come along, by a name of their own."""
EpisodeFunction = Callable[[str, str, Agent], Awaitable[float]]


def find_reward(name: str) -> RewardFunction:
    """The function `name` of three texts: prompt, answer, response. Raises TaskError where there is none."""
    name = BUILT_IN.get(name, name)
    reward: RewardFunction = _found(name, "task.reward", "my_rewards:score", ("prompt", "answer", "response"))
    return reward


def find_episode(name: str) -> EpisodeFunction:
    """The coroutine function `name` of prompt, answer and agent. Raises TaskError where there is none."""
    episode: EpisodeFunction = _found(name, "task.episode", "my_agents:play", ("prompt", "answer", "agent"))
    if not inspect.iscoroutinefunction(episode):
        raise TaskError(f"task.episode = {name!r}: not a coroutine function; define it with async def")
    return episode


def _found(name: str, key: str, example: str, parameters: tuple[str, str, str]) -> Any:
    module_name, colon, function_name = name.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module_name.split("."), function_name]):
        raise TaskError(f"{key} = {name!r}: not of the form module:function; e.g. {example}")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last, so that a file here never hides an installed module
        importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the user's module may raise anything while it is imported
        raise TaskError(
            f"{key} = {name!r}: {module_name} cannot be imported from the installed packages or {here}"
            f" ({type(error).__name__}: {one_line(str(error))}); mend the module or the name"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise TaskError(f"{key} = {name!r}: {module_name} ({_origin(module)}) has no function {function_name}")
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError as error:
        raise TaskError(
            f"{key} = {name!r}: cannot be called as {function_name}({', '.join(parameters)}) ({error});"
            " give it these three arguments"
        ) from None
    except ValueError:
        pass  # built-in functions may have no signature to look at
    return function


def _origin(module: object) -> str:
    return str(getattr(module, "__file__", None) or "no file")
