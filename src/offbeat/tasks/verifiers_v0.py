"""verifiers: any environment that `verifiers.load_environment` knows by name, as episodes.

The environment has its own prompts, turns, tools and rubric; it plays by the run's endpoint as by any other, and the
rubric's reward is the episode's. Its evaluation set is the exam; without one, the rows whose prompts hash lowest are.
The rest is read in epochs, each in an order of its own, as jsonl does. Bounds: an environment is the user's code, and
it is loaded wherever prompts are drawn. A change of prompts or rewards makes a new file (v1).
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import blake2b
from random import Random
from typing import Any

from offbeat.errors import EngineError, TaskError
from offbeat.eventtime.streams import stream_seed
from offbeat.ports import Agent
from offbeat.records import Prompt
from offbeat.settings import VerifiersTask
from offbeat.tasks.verdicts import one_line

EPOCHS_KEPT = 4
SAYING_NOTHING = "EmptyModelResponseError"
"""What verifiers calls an answer without text: the policy's doing, scored as it is, and no failure of the run."""
Turns = list[dict[str, Any]]


class Verifiers:
    """Prompt ids of training count the rows in epochs; those of the exam are negative, -1 - row."""

    name = "verifiers"

    def __init__(self, settings: VerifiersTask, seed: int) -> None:
        self._settings, self._seed = settings, seed
        self._environment = _loaded(settings.environment, settings.options)
        self._tools = [_tool(tool) for tool in self._environment.tool_defs or ()]
        self._rows, self._exam = self._split()
        self._order = lru_cache(EPOCHS_KEPT)(self._make_order)

    def prompt(self, prompt_id: int) -> Prompt:
        if prompt_id < 0:
            raise ValueError(f"prompt_id {prompt_id}: training prompts are numbered from 0")
        return self._prompt(prompt_id)

    def held_out(self, count: int) -> list[Prompt]:
        """Raises TaskError for more than there are."""
        if count > len(self._exam):
            raise TaskError(f"task verifiers: {count} held-out prompts wanted, {len(self._exam)} are there; ask fewer")
        return [self._prompt(-1 - i) for i in range(count)]

    def opening(self, prompt: Prompt) -> tuple[Turns, list[dict[str, Any]]]:
        """The messages an episode begins with, and the tools the model is told of, as chat templates take them."""
        return self._turns(self._row(prompt.prompt_id)), self._tools

    def reward(self, prompt: Prompt, response: str) -> float:
        """Raises TaskError: only an episode that was played has a reward."""
        raise TaskError("task verifiers: a text has no reward, only an episode that was played has")

    def validate(self, calling: Callable[[Prompt, str], None] | None = None) -> None:
        """Every row that is drawn first must begin with messages of text."""
        for row in (*self._rows[:1], *self._exam[:1]):
            self._turns(row)

    async def episode(self, prompt: Prompt, agent: Agent) -> float:
        """Raises EngineError where the environment, and not the policy, failed."""
        from openai import AsyncOpenAI
        from verifiers.clients import OpenAIChatCompletionsClient

        async with AsyncOpenAI(base_url=agent.base_url, api_key=agent.api_key, max_retries=0, timeout=None) as client:
            played = await self._environment.run_rollout(
                dict(self._row(prompt.prompt_id)), OpenAIChatCompletionsClient(client), agent.model, {}
            )
        failed = played.get("error")
        if failed and failed.get("error") != SAYING_NOTHING:
            chain = str(failed.get("error_chain_repr") or failed.get("error"))
            raise EngineError(f"environment {self._settings.environment}: {one_line(chain, 200)}")
        return float(played["reward"])

    def _split(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        name, wanted = self._settings.environment, self._settings.held_out
        rows = _listed(self._environment.get_dataset())
        with_exam = self._environment.build_eval_dataset() is not None
        if with_exam:
            exam = _listed(self._environment.get_eval_dataset())[:wanted]
        else:
            rows.sort(key=_rank)
            exam, rows = rows[:wanted], rows[wanted:]
            asked = {_rank(row) for row in exam}
            rows = [row for row in rows if _rank(row) not in asked]
        if len(exam) < wanted or not rows:
            raise TaskError(
                f"task.environment = {name!r}: too few prompts for task.held_out = {wanted} and training; lower it"
            )
        return rows, exam

    def _prompt(self, prompt_id: int) -> Prompt:
        row = self._row(prompt_id)
        text = "\n".join(turn["content"] for turn in self._turns(row))
        return Prompt(prompt_id, self._settings.environment, text, str(row.get("answer") or ""))

    def _row(self, prompt_id: int) -> dict[str, Any]:
        if prompt_id < 0:
            return self._exam[-1 - prompt_id]
        epoch, position = divmod(prompt_id, len(self._rows))
        return self._rows[self._order(epoch)[position]]

    def _make_order(self, epoch: int) -> list[int]:
        order = list(range(len(self._rows)))
        Random(stream_seed(self._seed, self.name, "epoch", epoch)).shuffle(order)
        return order

    def _turns(self, row: dict[str, Any]) -> Turns:
        turns = [{"role": turn.get("role"), "content": turn.get("content")} for turn in row["prompt"]]
        if not turns or not all(isinstance(turn["content"], str) for turn in turns):
            raise TaskError(
                f"task.environment = {self._settings.environment!r}: its prompts are no texts; choose another"
            )
        return turns


def _tool(tool: Any) -> dict[str, Any]:
    """As the endpoint shows it to the chat template when the environment's client sends it."""
    shown = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": shown}


def _listed(dataset: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in dataset]


def _rank(row: dict[str, Any]) -> bytes:
    text = json.dumps(row["prompt"], sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=16, person=b"held-out").digest()


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """An environment handles SIGINT and SIGTERM in its own way from when it is made: how a run stops is the run's."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _loaded(name: str, options: dict[str, Any]) -> Any:
    """Raises TaskError, in one line, for what cannot be loaded."""
    try:
        from verifiers.utils.env_utils import load_environment
    except ImportError as error:
        raise TaskError(
            f"task.name = 'verifiers': cannot be imported ({one_line(str(error))});"
            " run pip install 'offbeat[verifiers]' (versions 0.2 and 0.3)"
        ) from None
    try:
        with _own_signals():
            return load_environment(name, **options)
    except Exception as error:  # the environment is foreign code: it fails in its own way
        raise TaskError(
            f"task.environment = {name!r}: cannot be loaded ({type(error).__name__}: {one_line(str(error))});"
            " install its package, or mend the name or task.options"
        ) from error
