"""jsonl: the user's file and reward function, and one line for everything that can be wrong with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offbeat.errors import TaskError
from offbeat.settings import JsonlTask
from offbeat.tasks import import_reward, make_task
from offbeat.tasks.jsonl_v0 import Jsonl


def write(directory: Path, *rows: object) -> str:
    file = directory / "sums.jsonl"
    file.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(file)


def sums(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"{i}+{i}=", "answer": str(2 * i)} for i in range(count)]


def settings(file: str, held_out: int = 5, reward: str = "") -> JsonlTask:
    return JsonlTask(name="jsonl", file=file, held_out=held_out, reward=reward)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory of the test's own; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_epochs_hold_every_training_line_once_in_a_new_order(tmp_path: Path) -> None:
    task = make_task(settings(write(tmp_path, *sums(25))), 0)
    exam = {prompt.text for prompt in task.held_out(5)}
    training = {row["prompt"] for row in sums(25)} - exam
    assert len(exam) == 5
    epochs = [[task.prompt(20 * epoch + i).text for i in range(20)] for epoch in range(6)]
    for epoch in epochs:
        assert len(epoch) == len(set(epoch))
        assert set(epoch) == training
    assert len({tuple(epoch) for epoch in epochs}) == 6
    again = make_task(settings(task_file(tmp_path)), 0)
    assert [again.prompt(i).text for i in reversed(range(120))] == [text for e in epochs for text in e][::-1]
    assert [make_task(settings(task_file(tmp_path)), 1).prompt(i).text for i in range(20)] != epochs[0]


def task_file(directory: Path) -> str:
    return str(directory / "sums.jsonl")


def test_the_exam_is_the_same_for_every_seed_and_order_of_lines(tmp_path: Path) -> None:
    exam = make_task(settings(write(tmp_path, *sums(25))), 0).held_out(5)
    shuffled = make_task(settings(write(tmp_path, *reversed(sums(25)))), 9)
    assert shuffled.held_out(5) == exam
    assert shuffled.held_out(2) == exam[:2]
    with pytest.raises(TaskError, match=r"set task\.held_out = 6"):
        shuffled.held_out(6)


def test_dataset_blank_lines_byte_order_mark_and_other_keys(tmp_path: Path) -> None:
    file = tmp_path / "mixed.jsonl"
    lines = '\ufeff{"prompt": "a?", "answer": "é", "dataset": "one", "level": 3}\r\n\r\n{"prompt": "b?", "answer": "y"}'
    file.write_bytes(lines.encode())
    task = make_task(settings(str(file), held_out=1), 0)
    prompts = {p.text: p for p in (task.prompt(0), *task.held_out(1))}
    assert (prompts["a?"].dataset, prompts["a?"].answer) == ("one", "é")
    assert (prompts["b?"].dataset, prompts["b?"].answer) == ("mixed", "y")


def test_exact_duplicates_are_dropped_and_counted(tmp_path: Path) -> None:
    task = make_task(settings(write(tmp_path, *sums(8), *sums(3))), 0)
    assert isinstance(task, Jsonl)
    assert task.duplicates == 3
    assert len({task.prompt(i).text for i in range(30)}) == 3


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 3: not a line of JSON"),
        ('{"more": ' + "[" * 100_000, "line 3: not a line of JSON"),
        ('{"prompt": "\\ud800", "answer": "1"}', "line 3: not a line of JSON"),
        ('["1+1=", "2"]', "line 3: Expected `object`"),
        ({"prompt": "1+1="}, "line 3: .*`answer`"),
        ({"answer": "2"}, "line 3: .*`prompt`"),
        ({"prompt": "1+1=", "answer": 2}, r"line 3: Expected `str`, got `int` - at `\$.answer`"),
        ({"prompt": "1+1=", "answer": None}, "line 3: Expected `str`"),
        ({"prompt": "1+1=", "answer": "2", "dataset": 3}, r"line 3: .*\$.dataset"),
        ({"prompt": " ", "answer": "2"}, "line 3: prompt is empty"),
        ({"prompt": "1+1=", "answer": "\n"}, "line 3: answer is empty"),
        ({"prompt": "0+0=", "answer": "1"}, "lines 1 and 3 give the same prompt different answers"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: object, complaint: str) -> None:
    file = write(tmp_path, sums(1)[0], "", line, *sums(20)[1:])
    with pytest.raises(TaskError, match=complaint) as caught:
        make_task(settings(file), 0)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b'{"prompt": "\xff\xfe", "answer": "1"}\n')
    with pytest.raises(TaskError, match="line 1: not a line of JSON"):
        make_task(settings(str(tmp_path / "bad.jsonl")), 0)


def test_files_that_cannot_serve(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no such file"):
        make_task(settings(str(tmp_path / "nothing.jsonl")), 0)
    with pytest.raises(TaskError, match="cannot be read"):
        make_task(settings(str(tmp_path)), 0)
    with pytest.raises(TaskError, match="has no lines"):
        make_task(settings(write(tmp_path, "", " ")), 0)
    with pytest.raises(TaskError, match=r"5 different prompts are too few .*task\.held_out to at most 4"):
        make_task(settings(write(tmp_path, *sums(5))), 0)
    with pytest.raises(TaskError, match="1 different prompts are too few"):
        make_task(settings(write(tmp_path, *sums(1)), held_out=1), 0)
    make_task(settings(write(tmp_path, *sums(6))), 0).validate()


def test_exact_match_without_a_reward_function(tmp_path: Path) -> None:
    task = make_task(settings(write(tmp_path, *sums(12))), 0)
    prompt = task.prompt(0)
    assert task.reward(prompt, f"\n{prompt.answer} ") == 1.0
    assert task.reward(prompt, f"{prompt.answer}0") == 0.0


def test_reward_function_from_the_current_directory(here: Path) -> None:
    (here / "my_scores.py").write_text(
        "def score(prompt, answer, response):\n"
        "    assert prompt == answer_of(answer)\n"
        "    return 1.0 if response == answer else 0.25\n"
        "def answer_of(answer):\n"
        "    return f'{int(answer) // 2}+{int(answer) // 2}='\n"
    )
    task = make_task(settings(write(here, *sums(12)), reward="my_scores:score"), 0)
    task.validate()
    prompt = task.prompt(3)
    assert task.reward(prompt, prompt.answer) == 1.0
    assert task.reward(prompt, "else") == 0.25


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def score(prompt, answer, response): return float('nan')", "is nan"),
        ("def score(prompt, answer, response): return 1.0", "wrong answer"),
        ("def score(prompt, answer, response): return 1 / 0", "raised ZeroDivisionError"),
        ("def score(prompt, answer, response): return 3", "is 3;"),
    ],
)
def test_validate_refuses_a_bad_reward_function(here: Path, source: str, complaint: str) -> None:
    (here / "bad_scores.py").write_text(source)
    task = make_task(settings(write(here, *sums(12)), reward="bad_scores:score"), 0)
    with pytest.raises(TaskError, match=complaint):
        task.validate()


@pytest.mark.parametrize(
    ("source", "reward", "complaint"),
    [
        ("", "no_such_module_here:score", "cannot be imported .*ModuleNotFoundError"),
        ("", "other_scores", "not of the form module:function"),
        ("", "other_scores:", "not of the form"),
        ("", ":score", "not of the form"),
        ("", "other_scores:score", "has no function score"),
        ("score = 3", "other_scores:score", "has no function score"),
        ("def score(prompt): return 1", "other_scores:score", r"cannot be called as score\(prompt, answer, response\)"),
        ("def score(:", "other_scores:score", "SyntaxError"),
        ("raise RuntimeError('two\\nlines')", "other_scores:score", "RuntimeError: two"),
        ("import sys; sys.exit(3)", "other_scores:score", "SystemExit"),
    ],
)
def test_reward_functions_that_cannot_be_had(here: Path, source: str, reward: str, complaint: str) -> None:
    (here / "other_scores.py").write_text(source)
    chosen = settings(write(here, *sums(12)), reward=reward)
    with pytest.raises(TaskError, match=complaint) as caught:
        import_reward(chosen)
    assert "\n" not in str(caught.value)
    task = make_task(chosen, 0)
    with pytest.raises(TaskError, match=complaint):
        task.reward(task.prompt(0), "never an exact match instead")


def test_who_only_draws_prompts_runs_no_code_of_the_user(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The main process draws prompts; what a user's module prints, or whether it ever ends, is nothing to it."""
    (here / "loud_scores.py").write_text("print('loud')\ndef score(prompt, answer, response): return 1.0\n")
    task = make_task(settings(write(here, *sums(12)), reward="loud_scores:score"), 0)
    prompts = [task.prompt(0), *task.held_out(2)]
    assert "loud_scores" not in sys.modules
    assert capfd.readouterr().out == ""
    assert task.reward(prompts[0], "x") == 1.0
    assert capfd.readouterr().out == "loud\n"
