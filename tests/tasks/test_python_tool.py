"""The Python tool task: programs are run, their output is read, the last number counts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from offbeat import tasks
from offbeat.errors import OutOfRoom, TaskError
from offbeat.settings import PythonToolTask
from offbeat.tasks import make_task

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="confinement is of Linux")


class Scripted:
    """Says what the script says, as the endpoint would: without the stop string."""

    base_url = api_key = model = ""

    def __init__(self, *script: str) -> None:
        self.script = list(script)
        self.heard: list[dict[str, str]] = []

    async def say(
        self, messages: Sequence[dict[str, str]], stop: Sequence[str] = (), max_tokens: int | None = None
    ) -> str:
        assert stop == (">",)
        self.heard = list(messages)
        if not self.script:
            raise OutOfRoom("no room")
        return self.script.pop(0).partition(">")[0]


def played(*script: str, prompt_id: int = 0, **settings: Any) -> tuple[float, list[str]]:
    task: Any = make_task(PythonToolTask(**settings), 0)
    agent = Scripted(*script)
    reward = asyncio.run(task.episode(task.prompt(prompt_id), agent))
    return reward, [message["content"] for message in agent.heard]


def test_the_task_is_sound_and_its_parts_are_its_gold() -> None:
    task: Any = make_task(PythonToolTask(digits=3), 1)
    task.validate()
    for prompt in [task.prompt(5), *task.held_out(3)]:
        assert "".join(text for text, _ in task.parts(prompt)) == prompt.answer
        assert [says for _, says in task.parts(prompt)] == [True, False, True]


def test_a_gold_episode_earns_the_reward() -> None:
    task: Any = make_task(PythonToolTask(), 0)
    (program, _), (shown, _), (number, _) = task.parts(task.prompt(0))
    reward, heard = played(program, number)
    assert reward == 1.0
    assert heard[1:] == [program.removesuffix(">"), shown], "the tool gives what the gold answer says it gives"


def test_other_answers_earn_nothing() -> None:
    assert played("12")[0] == 0.0
    assert played("<1/0>", "12")[0] == 0.0
    assert played()[0] == 0.0
    assert played("<1>", "<2>", "<3>", "4", most_calls=2)[0] == 0.0


def test_what_goes_wrong_in_a_program_is_what_the_policy_reads() -> None:
    assert played("<1/0>", "x")[1][-1] == "ZeroDivisionError: division by zero;"
    assert played("<while True: pass>", "x", tool_seconds=0.3)[1][-1] == "out of time;"
    assert played("<pass>", "x")[1][-1] == "done;"
    assert len(played("<'a' * 1000>", "x")[1][-1]) == 65


def test_what_episodes_need_is_asked_for_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "find_spec", lambda name: None)
    with pytest.raises(TaskError, match=r"starlette is not installed; run pip install 'offbeat\[agents\]'"):
        tasks.import_reward(PythonToolTask())
