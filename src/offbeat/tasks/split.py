"""The held-out split of endless tasks: a hash of the prompt's text decides, so no prompt is ever on both sides.

Invariant: training draws only texts with `is_held_out` false, the exam only texts with it true, whatever the seed.
Every search is bounded; a task too small for it is a TaskError. This file does not know how questions are made.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Literal, NamedTuple

from offbeat.errors import TaskError
from offbeat.records import Prompt

Side = Literal["train", "held-out"]

HELD_OUT_ONE_IN = 4
ATTEMPTS = 64
"""Draws for one training prompt: with one text in four held out, all of them fail once in 4^64."""
STRIDE = 2**40
"""Distance between the draws of one prompt, so that the first draws of neighbouring prompts are neighbours."""
PATIENCE = 256
"""Draws in a row without a held-out prompt before the task counts as too small: by chance, once in 10^32."""


class Question(NamedTuple):
    text: str
    answer: str


def is_held_out(text: str) -> bool:
    """Whether this prompt text belongs to the exam: one in `HELD_OUT_ONE_IN`, by hash."""
    digest = blake2b(text.encode(), digest_size=8, person=b"held-out").digest()
    return int.from_bytes(digest, "big") % HELD_OUT_ONE_IN == 0


class EndlessSource:
    """Prompts by position from `draw(side, index)`, a function of its arguments alone.

    A training prompt's id is its position; the exam's ids are negative, -1 - index.
    """

    def __init__(self, task: str, dataset: str, draw: Callable[[Side, int], Question]) -> None:
        self._task = task
        self._dataset = dataset
        self._draw = draw

    def index_of(self, prompt_id: int) -> tuple[Side, int]:
        """The draw that made this prompt. Raises TaskError where only held-out prompts turn up."""
        if prompt_id < 0:
            return "held-out", -1 - prompt_id
        for attempt in range(ATTEMPTS):
            index = attempt * STRIDE + prompt_id
            if not is_held_out(self._draw("train", index).text):
                return "train", index
        raise TaskError(
            f"task {self._task}: no training prompt is left beside the held-out ones ({ATTEMPTS} draws);"
            " give it settings with more different prompts"
        )

    def prompt(self, prompt_id: int) -> Prompt:
        """The training prompt at a position >= 0."""
        if prompt_id < 0:
            raise ValueError(f"prompt_id {prompt_id}: training prompts are numbered from 0")
        return self._prompt(prompt_id, self._draw(*self.index_of(prompt_id)))

    def held_out(self, count: int) -> list[Prompt]:
        """`count` draws of prompts that training never draws, distributed as training draws them, so a short prompt
        may come twice; a smaller count gives the beginning of a larger.
        """
        found: list[Prompt] = []
        index = missed = 0
        while len(found) < count:
            if missed >= PATIENCE:
                raise TaskError(
                    f"task {self._task}: no held-out prompt in {PATIENCE} draws;"
                    " give it settings with more different prompts"
                )
            question = self._draw("held-out", index)
            if is_held_out(question.text):
                found.append(self._prompt(-1 - index, question))
                missed = 0
            else:
                missed += 1
            index += 1
        return found

    def _prompt(self, prompt_id: int, question: Question) -> Prompt:
        return Prompt(prompt_id=prompt_id, dataset=self._dataset, text=question.text, answer=question.answer)
