"""jsonl: prompts and answers from the user's file, rewarded by exact match or by the user's function.

The held-out lines are those whose prompts hash lowest, whatever the seed, so every run on a file sits the same exam.
The rest is read in epochs, each in an order of its own: prompt id // N is the epoch.
A change of prompts, answers or rewards makes a new file (v1), never a new meaning of this one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from random import Random

from offbeat.errors import TaskError
from offbeat.eventtime.streams import stream_seed
from offbeat.records import Prompt
from offbeat.settings import JsonlTask
from offbeat.tasks.jsonl_rows import Row, read_rows
from offbeat.tasks.reward_function import RewardFunction, find_reward
from offbeat.tasks.verdicts import check_reward, checked, exact_match

EPOCHS_KEPT = 4
SAMPLE = 32


def _remedy(rows: int) -> str:
    return f"add lines or set task.held_out to at most {rows - 1}" if rows > 1 else "add lines: two at least"


class Jsonl:
    """`duplicates` counts the exact repeats that were dropped. Relative paths start at the current directory.

    The user's code is imported by the first reward and not before: who only draws prompts never runs it.
    """

    name = "jsonl"

    def __init__(self, settings: JsonlTask, seed: int) -> None:
        file = Path(settings.file).expanduser()
        rows, self.duplicates = read_rows(file)
        if len(rows) <= settings.held_out:
            raise TaskError(
                f"task.file = {settings.file!r}: {len(rows)} different prompts are too few for task.held_out ="
                f" {settings.held_out} and training; {_remedy(len(rows))}"
            )
        rows.sort(key=_rank)
        self._exam, self._rows = rows[: settings.held_out], rows[settings.held_out :]
        self._seed = seed
        self.system = settings.system
        self._dataset = file.stem
        self._reward = settings.reward
        self._order = lru_cache(EPOCHS_KEPT)(self._make_order)

    def prompt(self, prompt_id: int) -> Prompt:
        if prompt_id < 0:
            raise ValueError(f"prompt_id {prompt_id}: training prompts are numbered from 0")
        epoch, position = divmod(prompt_id, len(self._rows))
        return self._prompt(prompt_id, self._rows[self._order(epoch)[position]])

    def held_out(self, count: int) -> list[Prompt]:
        """The first `count` of the held-out lines; their ids are negative. Raises TaskError for more than there are."""
        if count > len(self._exam):
            raise TaskError(f"task jsonl: {count} held-out prompts wanted; set task.held_out = {count} to have them")
        return [self._prompt(-1 - i, row) for i, row in enumerate(self._exam[:count])]

    def reward(self, prompt: Prompt, response: str) -> float:
        """Exact match, or what the user's function gives. Raises TaskError unless that is a number in [0, 1]."""
        if not self._reward:
            return float(exact_match(prompt, response))
        return checked(self._function(prompt.text, prompt.answer, response), prompt)

    def validate(self, calling: Callable[[Prompt, str], None] | None = None) -> None:
        sample = [self.prompt(i) for i in range(min(SAMPLE, len(self._rows)))]
        check_reward(self, [*sample, *self.held_out(min(SAMPLE, len(self._exam)))], calling)

    @cached_property
    def _function(self) -> RewardFunction:
        return find_reward(self._reward)

    def _prompt(self, prompt_id: int, row: Row) -> Prompt:
        dataset = row.dataset or self._dataset
        return Prompt(prompt_id=prompt_id, dataset=dataset, text=row.prompt, answer=row.answer)

    def _make_order(self, epoch: int) -> list[int]:
        order = list(range(len(self._rows)))
        Random(stream_seed(self._seed, self.name, "epoch", epoch)).shuffle(order)
        return order


def _rank(row: Row) -> bytes:
    return blake2b(row.prompt.encode(), digest_size=16, person=b"held-out").digest()
