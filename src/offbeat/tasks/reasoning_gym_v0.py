"""reasoning-gym: any of its datasets by name, with the dataset's own options and its own scoring.

Datasets are cut into blocks of `BLOCK` items, each block made from a seed of its own: some datasets set up work for
every item at once or refuse large sizes. Invariant: an entry is a function of settings, seed, side and index.
A change of prompts, answers or rewards makes a new file (v1). The library is imported when a task is made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from offbeat.errors import TaskError
from offbeat.eventtime.streams import stream_seed
from offbeat.records import Prompt
from offbeat.settings import ReasoningGymTask
from offbeat.tasks.reproducible import check_reproducible, sample_of
from offbeat.tasks.split import EndlessSource, Question, Side
from offbeat.tasks.verdicts import check_reward, checked, one_line

BLOCK = 1000
BLOCKS_KEPT = 8
ENTRIES_KEPT = 1024
SAMPLE = 8

Made = TypeVar("Made")


class ReasoningGym:
    """Questions of one dataset. The dataset's scorer alone decides what is exact: several answers may be."""

    name = "reasoning-gym"

    def __init__(self, settings: ReasoningGymTask, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self.system = settings.system
        self._dataset = settings.dataset
        self._options = dict(settings.options)
        self._create = _library(settings.dataset, self._options)
        self._block = lru_cache(BLOCKS_KEPT)(self._make_block)
        self._entry = lru_cache(ENTRIES_KEPT)(self._make_entry)
        self._block("train", 0)  # wrong options show here, not at the first prompt
        self._source = EndlessSource(f"{self.name} {settings.dataset}", settings.dataset, self._draw)

    def prompt(self, prompt_id: int) -> Prompt:
        return self._source.prompt(prompt_id)

    def held_out(self, count: int) -> list[Prompt]:
        return self._source.held_out(count)

    def reward(self, prompt: Prompt, response: str) -> float:
        """The dataset's score of the stripped response. Raises TaskError for a prompt of another task or seed."""
        side, index = self._source.index_of(prompt.prompt_id)
        entry = self._entry(side, index)
        if entry["question"] != prompt.text:
            raise TaskError(f"prompt {prompt.prompt_id} is not one of {self._dataset} with these options and this seed")
        return checked(self._block(side, index // BLOCK).score_answer(response.strip(), entry), prompt)

    def validate(self, calling: Callable[[Prompt, str], None] | None = None) -> None:
        """As the Protocol says, and the prompts must be the same in another process."""
        sample = sample_of(self, SAMPLE)
        check_reproducible(sample, self._settings, self._seed, SAMPLE)
        check_reward(self, sample, calling)

    def _draw(self, side: Side, index: int) -> Question:
        entry = self._entry(side, index)
        return Question(entry["question"], entry["answer"])

    def _make_block(self, side: Side, block: int) -> Any:
        seed = stream_seed(self._seed, self.name, self._dataset, side, block) % 2**31
        return _foreign(
            lambda: self._create(self._dataset, seed=seed, size=BLOCK, **self._options),
            f"task.options = {one_line(repr(self._options))}: not options of the dataset {self._dataset!r}",
        )

    def _make_entry(self, side: Side, index: int) -> dict[str, Any]:
        block = self._block(side, index // BLOCK)
        with _global_streams(stream_seed(self._seed, self.name, self._dataset, side, "global", index)):
            entry: dict[str, Any] = _foreign(
                lambda: block[index % BLOCK],
                f"task.dataset = {self._dataset!r}: item {index} cannot be made with these options",
            )
        if not isinstance(entry["answer"], str) or not entry["answer"].strip():
            raise TaskError(
                f"task.dataset = {self._dataset!r}: it gives no gold answer to learn from and check the reward with;"
                " choose another dataset"
            )
        return entry


def _library(dataset: str, options: dict[str, Any]) -> Callable[..., Any]:
    """reasoning_gym's `create_dataset`, once name and options are seen to be possible."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise TaskError(
            f"task.name = 'reasoning-gym': cannot be imported ({one_line(str(error))});"
            " run pip install 'offbeat[tasks]'"
        ) from None
    if dataset not in DATASETS:
        close = get_close_matches(dataset, sorted(DATASETS)) or ["chain_sum", "..."]
        raise TaskError(
            f"task.dataset = {dataset!r}: reasoning-gym has no such dataset; did you mean {', '.join(close)}?"
        )
    for reserved in ("seed", "size"):
        if reserved in options:
            raise TaskError(f"task.options.{reserved}: set by offbeat (see run.seed); remove it")
    create: Callable[..., Any] = reasoning_gym.create_dataset
    return create


@contextmanager
def _global_streams(seed: int) -> Iterator[None]:
    """Python's and numpy's global random streams seeded within, as before afterwards: some datasets draw from them."""
    kept, kept_numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(kept)
        np.random.set_state(kept_numpy)


def _foreign(make: Callable[[], Made], complaint: str) -> Made:
    """Call into the library; whatever it raises becomes one line."""
    try:
        return make()
    except Exception as error:  # each of a hundred datasets checks its options in its own way
        raise TaskError(
            f"{complaint} ({type(error).__name__}: {one_line(str(error), 160)}); mend task.options"
        ) from error
