"""Mathematics is compared, not its spelling; a task whose answers hold none is refused before a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offbeat.errors import TaskError
from offbeat.settings import JsonlTask
from offbeat.tasks import make_task

pytest.importorskip("math_verify")


def task(tmp_path: Path, *rows: tuple[str, str]) -> JsonlTask:
    file = tmp_path / "maths.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in rows))
    return JsonlTask(file=str(file), reward="math-verify", held_out=1)


def test_spellings_of_one_value_are_right_and_others_wrong(tmp_path: Path) -> None:
    made = make_task(task(tmp_path, ("half of one", "\\frac{1}{2}"), ("six times seven", "42")), 0)
    by_text = {prompt.text: prompt for prompt in [made.prompt(0), *made.held_out(1)]}
    half, product = by_text["half of one"], by_text["six times seven"]
    for response in ("0.5", "$1/2$", "So it is $\\boxed{\\frac{2}{4}}$.", "1/2"):
        assert made.reward(half, response) == 1.0, response
    for response in ("2", "0.51", "", "I do not know", "$\\frac{1}{3}$"):
        assert made.reward(half, response) == 0.0, response
    assert made.reward(product, "The answer is 42.") == 1.0
    made.validate()


def test_an_answer_without_mathematics_is_refused(tmp_path: Path) -> None:
    made = make_task(task(tmp_path, ("a", "no idea"), ("b", "none either")), 0)
    with pytest.raises(TaskError, match="mend the answer"):
        made.validate()
