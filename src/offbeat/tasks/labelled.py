"""What running-sum and counting share: numbers behind labels that count down to "a", and the credit for a part of them.

A label tells a reader which number comes next and which is the last. The text format lives in `write_numbers` and
`read_numbers` alone. Invariant: a reward is 1 exactly for the gold answer. This file does not know what is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import accumulate
from random import Random
from string import ascii_letters

from offbeat.eventtime.streams import stream_seed
from offbeat.records import Prompt
from offbeat.tasks.split import EndlessSource, Question, Side
from offbeat.tasks.verdicts import check_reward, exact_match

MOST_NUMBERS = len(ascii_letters)
PARTIAL_CREDIT = 0.5
"""Reward of an answer whose numbers are all right but which is not an exact match."""
SAMPLE = 32


def labels(count: int) -> str:
    """`count` letters, the last of them "a"."""
    return ascii_letters[:count][::-1]


def write_numbers(numbers: Iterable[int]) -> str:
    """Example: [4, 11, 19] becomes "c4b11a19"."""
    numbers = list(numbers)
    return "".join(f"{label}{number}" for label, number in zip(labels(len(numbers)), numbers, strict=True))


def read_numbers(response: str) -> list[str]:
    """The numbers of a response, each with its label."""
    return re.findall(r"[^\d\s]\d*", response)


def partial_credit(answer: str, response: str) -> float:
    """PARTIAL_CREDIT times the share of numbers that are right before the first error, of the longer of both."""
    gold, given = read_numbers(answer), read_numbers(response)
    right = 0
    for wanted, got in zip(gold, given, strict=False):
        if got != wanted:
            break
        right += 1
    return PARTIAL_CREDIT * right / max(len(gold), len(given))


class LabelledTask:
    """Endless questions with labelled numbers as answers; their count n has P(n) ~ n^-tail over `counts`.

    `question(n, random)` makes one; it must use no other source of chance.
    """

    def __init__(
        self, name: str, seed: int, counts: range, tail: float, question: Callable[[int, Random], Question]
    ) -> None:
        self.name = name
        self._seed = seed
        self._counts = counts
        self._weights = list(accumulate(n**-tail for n in counts))
        self._question = question
        self._source = EndlessSource(name, name, self._draw)

    def prompt(self, prompt_id: int) -> Prompt:
        return self._source.prompt(prompt_id)

    def held_out(self, count: int) -> list[Prompt]:
        return self._source.held_out(count)

    def reward(self, prompt: Prompt, response: str) -> float:
        return 1.0 if exact_match(prompt, response) else partial_credit(prompt.answer, response)

    def validate(self, calling: Callable[[Prompt, str], None] | None = None) -> None:
        check_reward(self, [*map(self.prompt, range(SAMPLE)), *self.held_out(1)], calling)

    def _draw(self, side: Side, index: int) -> Question:
        random = Random(stream_seed(self._seed, self.name, side, index))
        (count,) = random.choices(self._counts, cum_weights=self._weights)
        return self._question(count, random)
