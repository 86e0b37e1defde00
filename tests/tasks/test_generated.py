"""running-sum, counting and addition: exact answers, the split between training and the exam, the shape of lengths."""

from __future__ import annotations

import re
import subprocess
import sys
from string import ascii_letters

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.errors import TaskError
from offbeat.settings import AdditionTask, CountingTask, RunningSumTask
from offbeat.tasks import make_task
from offbeat.tasks.labelled import PARTIAL_CREDIT, partial_credit, read_numbers, write_numbers
from offbeat.tasks.split import is_held_out

RUNNING_SUM = RunningSumTask()
ADDITION = AdditionTask(name="addition")
BOTH = pytest.mark.parametrize("settings", [RUNNING_SUM, ADDITION], ids=lambda s: s.name)


def test_format() -> None:
    assert write_numbers([4, 11, 19]) == "c4b11a19"


def test_running_sum_answers_by_slow_arithmetic() -> None:
    task = make_task(RUNNING_SUM, 0)
    for i in range(200):
        prompt = task.prompt(i)
        terms = [int(term) for term in re.findall(r"[a-zA-Z](\d+)", prompt.text)]
        assert RUNNING_SUM.min_terms <= len(terms) <= RUNNING_SUM.max_terms
        assert all(1 <= term <= RUNNING_SUM.max_term for term in terms)
        letters = ascii_letters[: len(terms)][::-1]
        assert prompt.answer == "".join(f"{letters[k]}{sum(terms[: k + 1])}" for k in range(len(terms)))


@pytest.mark.parametrize(("digits", "least", "most"), [(2, 10, 99), (3, 100, 999), (8, 10**7, 10**8 - 1)])
def test_addition_answers_by_slow_arithmetic(digits: int, least: int, most: int) -> None:
    task = make_task(AdditionTask(name="addition", digits=digits), 0)
    for i in range(100):
        prompt = task.prompt(i)
        a, b = map(int, prompt.text.removesuffix("=").split("+"))
        assert least <= a <= most
        assert least <= b <= most
        assert prompt.answer == str(a + b)


def test_number_of_terms_follows_the_power_law() -> None:
    task = make_task(RunningSumTask(tail=2.0, min_terms=2, max_terms=40), 1)
    draws = 4000
    counts = [len(re.findall("[a-zA-Z]", task.prompt(i).text)) for i in range(draws)]
    whole = sum(n**-2.0 for n in range(2, 41))
    for n in (2, 3, 4):
        expected = n**-2.0 / whole
        assert abs(counts.count(n) / draws - expected) < 5 * (expected * (1 - expected) / draws) ** 0.5
    expected = sum(n**-2.0 for n in range(20, 41)) / whole
    share = sum(n >= 20 for n in counts) / draws
    assert abs(share - expected) < 5 * (expected * (1 - expected) / draws) ** 0.5
    assert max(counts) <= 40


@BOTH
def test_random_access_for_ever(settings: RunningSumTask | AdditionTask) -> None:
    forwards = make_task(settings, 3)
    backwards = make_task(settings, 3)
    ids = [0, 1, 2, 63, 64, 1000, 10**9, 2**40 + 1]
    one = {i: forwards.prompt(i) for i in ids}
    two = {i: backwards.prompt(i) for i in reversed(ids)}
    assert one == two
    assert [one[i].prompt_id for i in ids] == ids
    assert one != {i: make_task(settings, 4).prompt(i) for i in ids}
    assert all(prompt.token_ids == () for prompt in one.values())


def test_another_process_draws_the_same() -> None:
    code = (
        "from offbeat.tasks import make_task; from offbeat.settings import RunningSumTask as R;"
        "t = make_task(R(), 5); print([t.prompt(i).text for i in range(20)], [p.text for p in t.held_out(20)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    task = make_task(RUNNING_SUM, 5)
    here = f"{[task.prompt(i).text for i in range(20)]} {[p.text for p in task.held_out(20)]}"
    assert done.stdout.strip() == here


@BOTH
def test_first_prompt_of_this_revision_never_changes(settings: RunningSumTask | AdditionTask) -> None:
    """Caches and old runs rest on it: other text for the same seed needs a new revision of the task's file."""
    fixed = {"running-sum": ("c86b81a12=", "c86b167a179"), "addition": ("307+390=", "697")}
    position = {"running-sum": 1, "addition": 3}[settings.name]
    prompt = make_task(settings.model_copy(update=FROZEN[settings.name]), 0).prompt(position)
    assert (prompt.text, prompt.answer) == fixed[settings.name]


FROZEN = {"running-sum": {"min_terms": 2, "max_terms": 40, "max_term": 99, "tail": 2.0}, "addition": {"digits": 3}}


@given(seed=st.integers(0, 2**32), other=st.integers(0, 2**32), ids=st.lists(st.integers(0, 2**50), max_size=8))
def test_training_never_draws_the_exam_whatever_the_seeds(seed: int, other: int, ids: list[int]) -> None:
    settings = RunningSumTask(max_term=5, min_terms=2, max_terms=3)  # 150 prompts in all: chance would collide
    exam = {prompt.text for prompt in make_task(settings, other).held_out(8)}
    drawn = {make_task(settings, seed).prompt(i).text for i in ids}
    assert not drawn & exam


@BOTH
def test_held_out_is_a_fixed_set(settings: RunningSumTask | AdditionTask) -> None:
    task = make_task(settings, 0)
    exam = task.held_out(100)
    assert exam == make_task(settings, 0).held_out(100)
    assert exam[:7] == task.held_out(7)
    assert len({prompt.prompt_id for prompt in exam}) == 100
    assert all(prompt.prompt_id < 0 and is_held_out(prompt.text) for prompt in exam)
    assert task.held_out(0) == []


def test_the_exam_is_distributed_as_training_is() -> None:
    """Short prompts may come twice: leaving repeats out would make the exam harder than what is trained."""
    task = make_task(CountingTask(), 0)
    exam = [len(read_numbers(prompt.answer)) for prompt in task.held_out(2000)]
    drawn = [len(read_numbers(task.prompt(i).answer)) for i in range(2000)]
    for n in (3, 4, 5):
        share = drawn.count(n) / 2000
        assert abs(exam.count(n) / 2000 - share) < 6 * (2 * share * (1 - share) / 2000) ** 0.5


def test_counting_answers_by_slow_arithmetic() -> None:
    task = make_task(CountingTask(), 0)
    for i in range(200):
        prompt = task.prompt(i)
        label, start, step = re.fullmatch(r"([a-zA-Z])(\d+)\+(\d+)=", prompt.text).groups()
        found, number = "", int(start)
        for letter in reversed(ascii_letters[: ascii_letters.index(label) + 1]):
            found += f"{letter}{number}"
            number += int(step)
        assert prompt.answer == found
        assert task.reward(prompt, prompt.answer) == 1.0
        assert task.reward(prompt, prompt.answer + "a1") < 0.5
    task.validate()


def test_a_single_possible_prompt_cannot_be_on_both_sides() -> None:
    task = make_task(RunningSumTask(min_terms=2, max_terms=2, max_term=1), 0)
    with pytest.raises(TaskError, match="more different prompts"):
        task.validate()


def test_negative_training_id() -> None:
    with pytest.raises(ValueError, match="from 0"):
        make_task(RUNNING_SUM, 0).prompt(-1)


@pytest.mark.parametrize(
    ("response", "share"),
    [
        ("", 0),
        ("c4", 1 / 3),
        ("c4b11", 2 / 3),
        ("c4b12a19", 1 / 3),
        ("c5b11a19", 0),
        ("d4b11a19", 0),
        ("c4b11a19", 1),
        ("c4b11a19a19", 3 / 4),
        ("nonsense", 0),
        ("cba", 0),
    ],
)
def test_partial_credit(response: str, share: float) -> None:
    assert partial_credit("c4b11a19", response) == pytest.approx(PARTIAL_CREDIT * share)


@given(st.integers(0, 500), st.text(alphabet="0123456789,+= x\n", max_size=20))
def test_reward_is_1_for_exact_matches_only(prompt_id: int, response: str) -> None:
    for settings in (RUNNING_SUM, ADDITION):
        task = make_task(settings, 0)
        prompt = task.prompt(prompt_id)
        assert task.reward(prompt, f" {prompt.answer}\n") == 1.0
        reward = task.reward(prompt, response)
        assert (reward == 1.0) == (response.strip() == prompt.answer)
        assert 0 <= reward <= 1


@BOTH
def test_validate_accepts(settings: RunningSumTask | AdditionTask) -> None:
    make_task(settings, 0).validate()
