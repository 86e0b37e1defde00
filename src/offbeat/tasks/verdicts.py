"""What a reward must be, and the check of a task's reward before a run trusts it.

Invariant: a task that passes `check_reward` gives 1.0 to its gold answers and less to wrong and empty ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Real

from offbeat.errors import TaskError
from offbeat.ports import Task
from offbeat.records import Prompt


def exact_match(prompt: Prompt, response: str) -> bool:
    """Whether the response is the gold answer, white space around it aside."""
    return response.strip() == prompt.answer.strip()


def checked(reward: object, prompt: Prompt) -> float:
    """A reward as a float. Raises TaskError unless it is a number in [0, 1]."""
    if not isinstance(reward, Real):
        raise TaskError(f"reward of prompt {shown(prompt)} is {one_line(repr(reward))}; return a number from 0 to 1")
    value = float(reward)
    if not (math.isfinite(value) and 0 <= value <= 1):
        raise TaskError(f"reward of prompt {shown(prompt)} is {value:g}; return a number from 0 to 1")
    return value


def check_reward(task: Task, prompts: Iterable[Prompt], calling: Callable[[Prompt, str], None] | None = None) -> None:
    """Raise TaskError, naming the prompt, unless gold gets 1.0 and perturbed and empty answers get less.

    `calling` is told of every call of the reward before it is made: the call may hang.
    """
    for prompt in prompts:
        gold = _asked(task, prompt, prompt.answer, calling)
        if gold != 1.0:
            raise TaskError(
                f"task {task.name}: the gold answer {one_line(repr(prompt.answer))} of prompt {shown(prompt)} gets"
                f" reward {gold:g}, not 1; mend the answer or the reward"
            )
        for kind, response in (("wrong", perturbed(prompt.answer)), ("empty", "")):
            reward = _asked(task, prompt, response, calling)
            if reward >= 1.0:
                raise TaskError(
                    f"task {task.name}: the {kind} answer {one_line(repr(response))} of prompt {shown(prompt)} gets"
                    f" reward {reward:g}; the reward must be below 1 for it"
                )


def perturbed(answer: str) -> str:
    """A wrong answer that looks like this one: every ASCII letter and digit is moved on by one, cyclically."""
    moved = "".join(_next(character) for character in answer)
    return moved if moved != answer else f"{answer}x"


def shown(prompt: Prompt) -> str:
    return f"{prompt.prompt_id} ({one_line(repr(prompt.text))})"


def one_line(text: str, width: int = 80) -> str:
    """The first line of a text, cut to `width` characters."""
    first = text.strip().splitlines()[0] if text.strip() else ""
    return first if len(first) <= width else f"{first[: width - 3]}..."


def _next(character: str) -> str:
    for alphabet in ("0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
        if character in alphabet:
            return alphabet[(alphabet.index(character) + 1) % len(alphabet)]
    return character


def _asked(task: Task, prompt: Prompt, response: str, calling: Callable[[Prompt, str], None] | None) -> float:
    if calling:
        calling(prompt, response)
    try:
        reward = task.reward(prompt, response)
    except TaskError as error:
        raise TaskError(f"task {task.name}: {error}") from None
    except (Exception, SystemExit) as error:  # the reward may be the user's code: all it raises becomes one line
        raise TaskError(
            f"task {task.name}: the reward of prompt {shown(prompt)} for the response {one_line(repr(response))}"
            f" raised {type(error).__name__}: {one_line(str(error))}; mend the reward"
        ) from error
    return checked(reward, prompt)
