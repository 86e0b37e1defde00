"""reasoning-gym: any dataset by name; wrong names, options and datasets without gold answers are one line."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from offbeat.errors import TaskError
from offbeat.settings import ReasoningGymTask
from offbeat.tasks import make_task
from offbeat.tasks.reproducible import sample_of
from offbeat.tasks.verdicts import check_reward

pytest.importorskip("reasoning_gym")


def settings(dataset: str, **options: Any) -> ReasoningGymTask:
    return ReasoningGymTask(name="reasoning-gym", dataset=dataset, options=options)


# Among them those that set up every item at once or refuse a large size.
@pytest.mark.parametrize("dataset", ["chain_sum", "gsm_symbolic", "list_functions", "word_ladder", "countdown"])
def test_datasets_are_random_access_and_valid(dataset: str) -> None:
    task = make_task(settings(dataset), 0)
    check_reward(task, sample_of(task, 8))
    ids = [0, 1, 999, 1000, 123_456]
    one = [task.prompt(i) for i in ids]
    again = make_task(settings(dataset), 0)
    assert [again.prompt(i) for i in reversed(ids)] == one[::-1]
    assert {prompt.dataset for prompt in one} == {dataset}
    assert [make_task(settings(dataset), 1).prompt(i) for i in ids] != one
    assert task.reward(one[0], f" {one[0].answer}\n") == 1.0
    assert task.reward(one[0], "") < 1.0


def test_validate_compares_with_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    make_task(settings("chain_sum", min_terms=2), 0).validate()
    with pytest.raises(TaskError, match=r"differ from process to process; set PYTHONHASHSEED=0"):
        make_task(settings("ransom_note"), 0).validate()  # leans on the order of a set


def test_global_random_streams_are_left_alone() -> None:
    random.seed(5)
    expected = random.random()
    random.seed(5)
    make_task(settings("list_functions"), 0).prompt(0)
    assert random.random() == expected


def test_options_reach_the_dataset() -> None:
    task = make_task(settings("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1), 0)
    for i in range(20):
        assert len(task.prompt(i).answer.removeprefix("-")) <= 2


def test_held_out_is_disjoint_and_can_be_rewarded_in_another_process() -> None:
    small = settings("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    task, scorer = make_task(small, 0), make_task(small, 0)
    exam = task.held_out(20)
    assert exam[:5] == task.held_out(5)
    assert not {prompt.text for prompt in exam} & {task.prompt(i).text for i in range(500)}
    assert all(scorer.reward(prompt, prompt.answer) == 1.0 for prompt in exam)


def test_the_datasets_own_scorer_decides() -> None:
    task = make_task(settings("countdown"), 0)
    prompt = task.prompt(0)
    assert task.reward(prompt, f"({prompt.answer})") == 1.0  # another way to write it


def test_a_prompt_of_another_seed_is_refused() -> None:
    with pytest.raises(TaskError, match="not one of chain_sum"):
        make_task(settings("chain_sum"), 1).reward(make_task(settings("chain_sum"), 0).prompt(0), "1")


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        (settings("chain_sun"), r"task\.dataset = 'chain_sun': .*did you mean chain_sum"),
        (settings("qqqq"), "no such dataset"),
        (settings("chain_sum", nonsense=1), r"task\.options = .*nonsense"),
        (settings("chain_sum", min_terms=9, max_terms=2), r"task\.options = .*mend task\.options"),
        (settings("chain_sum", min_terms="many"), r"task\.options = "),
        (settings("chain_sum", seed=1), r"task\.options\.seed"),
        (settings("chain_sum", size=1), r"task\.options\.size"),
        (settings("composite"), r"task\.options = \{\}"),
    ],
)
def test_wrong_settings_are_one_line(task: ReasoningGymTask, complaint: str) -> None:
    with pytest.raises(TaskError, match=complaint) as caught:
        make_task(task, 0)
    assert "\n" not in str(caught.value)


def test_a_dataset_without_gold_answers_is_refused() -> None:
    with pytest.raises(TaskError, match="no gold answer"):
        make_task(settings("graph_color"), 0).validate()


def test_a_dataset_whose_scorer_accepts_anything_is_refused() -> None:
    with pytest.raises(TaskError, match="must be below 1"):
        make_task(settings("game_of_life_halting"), 0).validate()


def test_nothing_slow_follows_the_last_call_of_the_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who times the calls takes for a hanging reward what follows the last one."""
    heard: list[str] = []
    monkeypatch.setattr(
        "offbeat.tasks.reasoning_gym_v0.check_reproducible", lambda *arguments: heard.append("another process")
    )
    make_task(settings("chain_sum", min_terms=2), 0).validate(lambda prompt, response: heard.append("reward"))
    assert heard[0] == "another process"
    assert set(heard[1:]) == {"reward"}


def test_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(TaskError, match=r"pip install 'offbeat\[tasks\]'") as caught:
        make_task(settings("chain_sum"), 0)
    assert "\n" not in str(caught.value)
