"""A task's prompts with their token ids, and whether they leave room for an answer: for preparation and run alike.

Invariants: whatever a dataset, a tokenizer or a chat template raises over a prompt is a TaskError that names it; one
rule says which prompt fits, in training and in the exam. This file knows no engine and no run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from offbeat.errors import TaskError
from offbeat.models.tokens import Tokenizer, encode_prompt, encode_rendered, rendered
from offbeat.ports import Task
from offbeat.records import Prompt
from offbeat.settings import RolloutSettings
from offbeat.tasks.verdicts import one_line


def encoded_prompt(tokenizer: Tokenizer, task: Task, prompt_id: int) -> Prompt:
    """A training prompt. Raises TaskError where it cannot be made or encoded."""
    return _encoded(tokenizer, f"prompt {prompt_id}", lambda: task.prompt(prompt_id), task)


def encoded_exam(tokenizer: Tokenizer, task: Task, count: int) -> list[Prompt]:
    """The held-out prompts. Raises TaskError where one cannot be made or encoded."""
    return [
        _encoded(tokenizer, f"held-out prompt {p.prompt_id}", partial(_same, p), task) for p in task.held_out(count)
    ]


def _same(prompt: Prompt) -> Prompt:
    return prompt


def misfit(prompt: Prompt, rollout: RolloutSettings) -> str:
    """Why a prompt with its token ids cannot be answered under these settings; empty where it can."""
    name = f"prompt {one_line(prompt.text, 40)!r} of {prompt.dataset}"
    if not prompt.token_ids:
        return f"{name} has no tokens"
    room = rollout.context - rollout.max_new_tokens
    if len(prompt.token_ids) <= room:
        return ""
    return (
        f"{name} has {len(prompt.token_ids)} tokens; with rollout.max_new_tokens = {rollout.max_new_tokens} only {room}"
        f" fit into rollout.context = {rollout.context}"
    )


def check_exam(prompts: Iterable[Prompt], rollout: RolloutSettings) -> None:
    """Raise TaskError for the first held-out prompt that cannot be answered: an exam leaves no prompt out."""
    for prompt in prompts:
        reason = misfit(prompt, rollout)
        if reason:
            raise TaskError(f"held-out {reason}; mend or remove it, or change these settings")


def _encoded(tokenizer: Tokenizer, name: str, make: Callable[[], Prompt], task: Task) -> Prompt:
    try:
        prompt = make()
        return msgspec.structs.replace(prompt, token_ids=tuple(_token_ids(tokenizer, prompt, task)))
    except TaskError:
        raise
    except Exception as error:  # foreign code: each dataset and each template fails in its own way
        words = (str(error).splitlines() or [""])[0]
        raise TaskError(f"{name} cannot be made or encoded ({type(error).__name__}: {words})") from error


def _token_ids(tokenizer: Tokenizer, prompt: Prompt, task: Task) -> list[int]:
    """One user turn, after a system turn where the task has one, or the turns and tools of its own `opening`."""
    opening = getattr(task, "opening", None)
    if opening is None:
        return _one_turn(tokenizer, prompt, getattr(task, "system", ""))
    turns, tools = opening(prompt)
    if tools and not tokenizer.chat_template:
        raise TaskError(f"task {task.name}: the model has no chat template that would tell it of tools; choose another")
    return encode_rendered(tokenizer, rendered(tokenizer, turns, tools))


def _one_turn(tokenizer: Tokenizer, prompt: Prompt, system: str) -> list[int]:
    if not system:
        return encode_prompt(tokenizer, prompt.text)
    if not tokenizer.chat_template:
        raise TaskError(f"task.system = {system!r}: the model has no chat template to say it in; leave it out")
    turns = [{"role": "system", "content": system}, {"role": "user", "content": prompt.text}]
    return encode_rendered(tokenizer, rendered(tokenizer, turns))
