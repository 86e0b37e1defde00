from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.errors import TaskError
from offbeat.models import gold
from offbeat.models.gold import IGNORED, Example, GoldAnswers, Limits, micro_batches, pad
from offbeat.models.presets import character_tokenizer
from tests.models.conftest import CopyTask

ROOMY = Limits(context=64, response=32)
lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=60)


def test_training_and_validation_share_no_prompt(copy_task: CopyTask) -> None:
    answers = GoldAnswers(copy_task, character_tokenizer(), ROOMY)
    validation, prompts = answers.validation(200)
    training = set(islice(answers.training(), 2000))
    assert prompts == len(validation) == 200
    assert training.isdisjoint(validation)
    assert len(training) > 100


def test_a_prompt_beyond_the_limits_counts_as_missed_and_is_not_trained_on() -> None:
    answers = GoldAnswers(CopyTask(letters="ab", suffix="zz"), character_tokenizer(), Limits(context=64, response=3))
    assert answers.validation(50) == ([], 50)


@pytest.mark.parametrize(
    ("task", "limits"),
    [
        (CopyTask(suffix="zz"), Limits(context=64, response=3)),
        (CopyTask(suffix="zz"), Limits(context=6, response=5)),
        (CopyTask(letters="é"), ROOMY),
    ],
)
def test_a_task_nobody_could_answer_is_named(task: CopyTask, limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gold, "PATIENCE", 50)
    answers = GoldAnswers(task, character_tokenizer(), limits)
    with pytest.raises(TaskError, match="task copy: none of 50 prompts"):
        next(answers.training())


def test_limits_are_inclusive() -> None:
    task = CopyTask(suffix="zz")
    prompt = task.prompt(0)
    exact = Limits(context=len(prompt.text) + 1 + 4, response=4)
    example = GoldAnswers(task, character_tokenizer(), exact).encode(prompt)
    assert example is not None
    assert len(example) == exact.context


@given(lengths, st.integers(1, 400))
def test_micro_batches_keep_every_example_once_and_stay_within_bounds(sizes: list[tuple[int, int]], room: int) -> None:
    examples = [Example(tuple(range(p)), tuple(range(r))) for p, r in sizes]
    parts = micro_batches(examples, room)
    assert sorted(map(len, examples)) == sorted(len(example) for part in parts for example in part)
    for part in parts:
        longest = max(map(len, part))
        assert len(part) == 1 or longest * len(part) <= room
        assert sum(longest - len(example) for example in part) <= gold.WORTHWHILE_PADDING


@given(lengths)
def test_padding_puts_each_response_token_after_what_predicts_it(sizes: list[tuple[int, int]]) -> None:
    examples = [Example(tuple(range(100, 100 + p)), tuple(range(500, 500 + r))) for p, r in sizes]
    padded = pad(examples)
    for row, example in enumerate(examples):
        ids = example.prompt_ids + example.response_ids
        for position in range(padded.inputs.shape[1]):
            target = int(padded.targets[row, position])
            if len(example.prompt_ids) <= position + 1 < len(ids):
                assert (int(padded.inputs[row, position]), target) == (ids[position], ids[position + 1])
            else:
                assert target == IGNORED


def test_what_a_tool_gives_is_context_and_nothing_to_learn() -> None:
    """Inputs hold the whole episode, targets what the policy says of it."""
    from offbeat.settings import PythonToolTask
    from offbeat.tasks import make_task

    task = make_task(PythonToolTask(), 0)
    prompt = task.prompt(0)
    example = GoldAnswers(task, character_tokenizer(), ROOMY).encode(prompt)
    assert example is not None
    program, _, rest = prompt.answer.partition(">")
    shown, _, number = rest.partition(";")
    mask = [True] * (len(program) + 1) + [False] * (len(shown) + 1) + [True] * (len(number) + 1)
    assert example.said == tuple(mask)
    assert example.learned == sum(mask)
    padded = pad([example])
    first = len(example.prompt_ids) - 1
    wanted = [token if says else IGNORED for token, says in zip(example.response_ids, mask, strict=True)]
    assert padded.targets[0, first:].tolist() == wanted
    assert padded.inputs[0].tolist() == [*example.prompt_ids, *example.response_ids][:-1]
