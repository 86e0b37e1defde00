"""Prompts by position, with their token ids, and responses as text: the task and the tokenizer behind one desk.

Invariant: what the engine takes for the end of a response is no part of its text; everything else is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from offbeat.errors import EngineError, RunDirectoryError
from offbeat.models.prompts import encoded_exam, encoded_prompt
from offbeat.models.tokens import decode_response, load_tokenizer
from offbeat.ports import Task
from offbeat.records import Prompt, Trajectory
from offbeat.rollout.config import read_shape


class PromptBook:
    """`held_out` is fixed; training prompts are drawn by id and kept while they are in use.

    Raises RunDirectoryError where the policy's tokenizer or shape cannot be read, TaskError for a held-out prompt.
    """

    def __init__(self, task: Task, policy: Path, held_out: int) -> None:
        self._task = task
        try:
            self._tokenizer = load_tokenizer(policy)
            self._ends = read_shape(policy).eos_ids
        except (OSError, ValueError, EngineError) as error:
            raise RunDirectoryError(
                f"policy {policy}: damaged ({(str(error).splitlines() or [''])[0]}); put it back from a copy, or begin"
                " a new run"
            ) from None
        self._kept: dict[int, Prompt] = {}
        self.held_out = encoded_exam(self._tokenizer, task, held_out)

    def prompt(self, prompt_id: int) -> Prompt:
        """Raises TaskError for one that cannot be made or encoded."""
        found = self._kept.get(prompt_id)
        if found is None:
            found = self._kept[prompt_id] = encoded_prompt(self._tokenizer, self._task, prompt_id)
        return found

    def forget_before(self, prompt_id: int) -> None:
        """Prompts older than this are rarely needed again; they can always be drawn anew."""
        for old in [kept for kept in self._kept if kept < prompt_id]:
            del self._kept[old]

    def text(self, token_ids: Sequence[int]) -> str:
        return decode_response(self._tokenizer, token_ids, self._ends)

    def with_text(self, trajectory: Trajectory) -> Trajectory:
        return msgspec.structs.replace(trajectory, text=self.text(trajectory.token_ids))
