"""Tasks small enough to be learned in seconds, behind the ordinary Task protocol."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from offbeat.records import Prompt


@dataclass
class CopyTask:
    """Say one letter again: "a1=" is answered "a". `letters` sets how many prompts there are."""

    letters: str = "abcdefgh"
    digits: int = 40
    suffix: str = ""
    name: str = "copy"

    def prompt(self, prompt_id: int) -> Prompt:
        draw = random.Random(prompt_id)
        letter = draw.choice(self.letters)
        return Prompt(prompt_id, self.name, f"{draw.randrange(self.digits)}{letter}=", letter + self.suffix)

    def held_out(self, count: int) -> list[Prompt]:
        return [Prompt(i, self.name, f"held {i}", "x") for i in range(count)]

    def reward(self, prompt: Prompt, response: str) -> float:
        return float(response.strip() == prompt.answer)

    def validate(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def copy_task() -> CopyTask:
    return CopyTask()
