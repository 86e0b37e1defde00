"""The user's code runs in the checker, and every call of it is announced before it is made."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from offbeat.backends.checker_process import IMPORT_SECONDS, check_reward
from offbeat.backends.messages import ForeignCall, Preparing
from offbeat.errors import TaskError
from offbeat.settings import load_settings
from offbeat.tasks import make_task

MODULE = "announced_rewards"


class Ear:
    """A link that notes what was imported and called when a message was sent."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.imported: list[bool] = []
        self.calls: list[int] = []

    def send(self, message: Any) -> None:
        self.heard.append(message)
        self.imported.append(MODULE in sys.modules)
        self.calls.append(getattr(sys.modules.get(MODULE), "calls", 0))

    def drain(self) -> None:
        pass


def check(folder: Path, reward: str, monkeypatch: pytest.MonkeyPatch) -> Ear:
    (folder / f"{MODULE}.py").write_text(reward)
    (folder / "data.jsonl").write_text("\n".join(json.dumps({"prompt": f"q{i}", "answer": f"{i}"}) for i in range(4)))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    task = ("task.name=jsonl", f"task.file={folder / 'data.jsonl'}", f"task.reward={MODULE}:reward", "task.held_out=2")
    settings = load_settings(None, [*task, "task.reward_seconds=3"])
    ear = Ear()
    check_reward(ear, make_task(settings.task, 0), settings)  # type: ignore[arg-type]
    return ear


REWARD = """
calls = 0

def reward(prompt, answer, response):
    global calls
    calls += 1
    return float(response == answer)
"""


def test_every_foreign_call_is_announced_with_its_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ear = check(tmp_path, REWARD, monkeypatch)
    calls = 3 * 4  # gold, wrong and empty, of every prompt
    imported, checking, *called, checked = ear.heard
    assert (type(imported), type(checking), type(checked)) == (ForeignCall, Preparing, Preparing)
    assert imported.seconds == IMPORT_SECONDS
    assert [message.seconds for message in called] == [3.0] * calls
    assert ear.imported == [False] + [True] * (2 + calls)
    assert ear.calls == [0, 0, *range(calls), calls]
    assert "the import of its reward" in imported.complaint
    assert "raise task.reward_seconds" in called[0].complaint


def test_a_reward_that_cannot_be_imported_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TaskError, match="cannot be imported") as caught:
        check(tmp_path, "raise SystemExit(3)", monkeypatch)
    assert "\n" not in str(caught.value)
