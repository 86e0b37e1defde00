"""`check_reward` must refuse every kind of broken reward and name the prompt."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.errors import TaskError
from offbeat.records import Prompt
from offbeat.tasks.verdicts import check_reward, checked, one_line, perturbed

PROMPT = Prompt(prompt_id=7, dataset="made-up", text="two and two?", answer="4")


class MadeUp:
    """A task whose reward is whatever the test says."""

    name = "made-up"

    def __init__(self, reward: Callable[[str, str], float]) -> None:
        self._reward = reward

    def prompt(self, prompt_id: int) -> Prompt:
        return PROMPT

    def held_out(self, count: int) -> list[Prompt]:
        return [PROMPT] * count

    def reward(self, prompt: Prompt, response: str) -> float:
        return self._reward(prompt.answer, response)

    def validate(self) -> None:
        check_reward(self, [PROMPT])


def leaves(answer: str, response: str) -> float:
    raise SystemExit(3)


def raises(answer: str, response: str) -> float:
    raise KeyError("score\nboard")


@pytest.mark.parametrize(
    ("reward", "complaint"),
    [
        (lambda answer, response: 0.0, "gold answer '4'.*gets reward 0, not 1"),
        (lambda answer, response: 0.99, "gold answer '4'.*gets reward 0.99"),
        (lambda answer, response: 1.0, "wrong answer '5'.*gets reward 1"),
        (lambda answer, response: float(response in answer), "empty answer ''.*gets reward 1"),
        (lambda answer, response: math.nan, "is nan"),
        (lambda answer, response: 2.0, "is 2;"),
        (lambda answer, response: -0.5, "is -0.5"),
        (lambda answer, response: None, "is None"),
        (lambda answer, response: "1.0", "is '1.0'"),
        (raises, "raised KeyError: .*mend the reward"),
        (leaves, "raised SystemExit: 3; mend the reward"),
    ],
)
def test_broken_rewards_are_refused(reward: Callable[[str, str], float], complaint: str) -> None:
    with pytest.raises(TaskError, match=complaint) as caught:
        MadeUp(reward).validate()
    message = str(caught.value)
    assert "7 ('two and two?')" in message
    assert message.startswith("task made-up: ") or "reward of prompt" in message
    assert "\n" not in message


def test_a_sound_reward_passes() -> None:
    MadeUp(lambda answer, response: float(answer == response)).validate()
    MadeUp(lambda answer, response: answer == response).validate()


@pytest.mark.parametrize(("given_", "value"), [(1, 1.0), (True, 1.0), (0.25, 0.25), (np.float32(0.5), 0.5)])
def test_numbers_of_any_kind_become_floats(given_: object, value: float) -> None:
    reward = checked(given_, PROMPT)
    assert type(reward) is float
    assert reward == value


@given(st.text(max_size=40))
def test_perturbed_is_another_answer(answer: str) -> None:
    assert perturbed(answer).strip() != answer.strip()


def test_perturbed_by_example() -> None:
    assert perturbed("85,97") == "96,08"
    assert perturbed("Zed a9") == "Afe b0"
    assert perturbed("+") == "+x"


def test_one_line() -> None:
    assert one_line("a\nb") == "a"
    assert one_line("") == ""
    assert one_line("x" * 100, 10) == "xxxxxxx..."
