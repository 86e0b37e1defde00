"""addition: add two numbers of the same number of digits. The reward is 1 for the right sum, else 0.

A change of prompts, answers or rewards makes a new file (v1), never a new meaning of this one.
Example: "123+456=" has the gold answer "579".
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from offbeat.eventtime.streams import stream_seed
from offbeat.records import Prompt
from offbeat.settings import AdditionTask
from offbeat.tasks.split import EndlessSource, Question, Side
from offbeat.tasks.verdicts import check_reward, exact_match

SAMPLE = 32


class Addition:
    """Both terms are uniform on the numbers of exactly `digits` digits; 0 counts as one digit."""

    name = "addition"

    def __init__(self, settings: AdditionTask, seed: int) -> None:
        self._seed = seed
        self._least = 10 ** (settings.digits - 1) if settings.digits > 1 else 0
        self._most = 10**settings.digits - 1
        self._source = EndlessSource(self.name, self.name, self._draw)

    def prompt(self, prompt_id: int) -> Prompt:
        return self._source.prompt(prompt_id)

    def held_out(self, count: int) -> list[Prompt]:
        return self._source.held_out(count)

    def reward(self, prompt: Prompt, response: str) -> float:
        return float(exact_match(prompt, response))

    def validate(self, calling: Callable[[Prompt, str], None] | None = None) -> None:
        check_reward(self, [*map(self.prompt, range(SAMPLE)), *self.held_out(1)], calling)

    def _draw(self, side: Side, index: int) -> Question:
        random = Random(stream_seed(self._seed, self.name, side, index))
        a, b = (random.randint(self._least, self._most) for _ in range(2))
        return Question(f"{a}+{b}=", str(a + b))
