"""counting: count from one number to another in equal steps. Short answers are common, long ones heavy-tailed.

The text format lives in `write_prompt` and `write_answer` alone. A change of prompts, answers or rewards makes a
new file (v1), never a new meaning of this one.
Example: "17+6>35=" has the gold answer "23,29,35".
"""

from __future__ import annotations

from itertools import accumulate
from random import Random

from offbeat.eventtime.streams import stream_seed
from offbeat.records import Prompt
from offbeat.settings import CountingTask
from offbeat.tasks.split import EndlessSource, Question, Side
from offbeat.tasks.verdicts import check_reward, exact_match

PARTIAL_CREDIT = 0.5
"""Reward of an answer whose leading numbers are all right but which is not an exact match."""
SAMPLE = 32


def write_prompt(start: int, step: int, end: int) -> str:
    return f"{start}+{step}>{end}="


def write_answer(start: int, step: int, end: int) -> str:
    """start + step, start + 2 step, ..., end."""
    return ",".join(map(str, range(start + step, end + 1, step)))


def partial_credit(answer: str, response: str) -> float:
    """PARTIAL_CREDIT times the share of numbers that are right before the first error, of the longer of both lists."""
    gold, given = answer.split(","), response.strip().split(",")
    right = 0
    for wanted, got in zip(gold, given, strict=False):
        if got != wanted:
            break
        right += 1
    return PARTIAL_CREDIT * right / max(len(gold), len(given))


class Counting:
    """n numbers with P(n) proportional to n^-tail for min_count <= n <= max_count; start and step are uniform."""

    name = "counting"

    def __init__(self, settings: CountingTask, seed: int) -> None:
        self._seed = seed
        self._settings = settings
        self._counts = range(settings.min_count, settings.max_count + 1)
        self._weights = list(accumulate(n**-settings.tail for n in self._counts))
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
        (count,) = random.choices(self._counts, cum_weights=self._weights)
        start = random.randint(0, self._settings.max_start)
        step = random.randint(1, self._settings.max_step)
        end = start + step * count
        return Question(write_prompt(start, step, end), write_answer(start, step, end))
