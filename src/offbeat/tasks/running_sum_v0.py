"""running-sum: add a list of numbers, writing every partial sum. Short prompts are common, long ones heavy-tailed.

The text format lives in `write_prompt`, `write_answer` and `read_answer` alone. A change of prompts, answers or
rewards makes a new file (v1), never a new meaning of this one.
Example: "c4b7a8=" (4 + 7 + 8, labelled) has the gold answer "c4b11a19".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from string import ascii_letters

from offbeat.eventtime.streams import stream_seed
from offbeat.records import Prompt
from offbeat.settings import RunningSumTask
from offbeat.tasks.split import EndlessSource, Question, Side
from offbeat.tasks.verdicts import check_reward, exact_match

LETTERS = ascii_letters
PARTIAL_CREDIT = 0.5
"""Reward of an answer whose partial sums are all right but which is not an exact match."""
SAMPLE = 32


def labels(count: int) -> str:
    """One letter a term, counting down to "a", so that a reader knows which term comes next and which is the last."""
    return LETTERS[:count][::-1]


def write_prompt(terms: Sequence[int]) -> str:
    return "".join(f"{label}{term}" for label, term in zip(labels(len(terms)), terms, strict=True)) + "="


def write_answer(terms: Sequence[int]) -> str:
    """The partial sum after each term, the first included."""
    return "".join(f"{label}{total}" for label, total in zip(labels(len(terms)), accumulate(terms), strict=True))


def read_answer(response: str) -> list[str]:
    """The partial sums of a response, each with its label."""
    return re.findall(r"[^\d\s]\d*", response)


def partial_credit(answer: str, response: str) -> float:
    """PARTIAL_CREDIT times the share of partial sums that are right before the first error, of the longer answer."""
    gold, given = read_answer(answer), read_answer(response)
    right = 0
    for wanted, got in zip(gold, given, strict=False):
        if got != wanted:
            break
        right += 1
    return PARTIAL_CREDIT * right / max(len(gold), len(given))


class RunningSum:
    """min_terms <= n <= max_terms terms with P(n) proportional to n^-tail, each uniform on 1..max_term."""

    name = "running-sum"

    def __init__(self, settings: RunningSumTask, seed: int) -> None:
        self._seed = seed
        self._max_term = settings.max_term
        self._lengths = range(settings.min_terms, settings.max_terms + 1)
        self._weights = list(accumulate(n**-settings.tail for n in self._lengths))
        self._source = EndlessSource(self.name, self.name, self._draw)

    def prompt(self, prompt_id: int) -> Prompt:
        return self._source.prompt(prompt_id)

    def held_out(self, count: int) -> list[Prompt]:
        return self._source.held_out(count)

    def reward(self, prompt: Prompt, response: str) -> float:
        return 1.0 if exact_match(prompt, response) else partial_credit(prompt.answer, response)

    def validate(self) -> None:
        check_reward(self, [*map(self.prompt, range(SAMPLE)), *self.held_out(1)])

    def _draw(self, side: Side, index: int) -> Question:
        random = Random(stream_seed(self._seed, self.name, side, index))
        (length,) = random.choices(self._lengths, cum_weights=self._weights)
        terms = [random.randint(1, self._max_term) for _ in range(length)]
        return Question(write_prompt(terms), write_answer(terms))
