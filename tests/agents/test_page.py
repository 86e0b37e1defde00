"""The example of docs/agents.md as it stands there: its settings take a prompt of a sentence, its code plays."""

from __future__ import annotations

import asyncio
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from offbeat.models.presets import character_tokenizer
from offbeat.models.prompts import misfit
from offbeat.records import Prompt
from offbeat.settings import load_settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "agents.md"
SENTENCE = "What is the number that comes after 00041? "


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return found[1]


def test_the_settings_leave_room_for_a_prompt_of_a_sentence(tmp_path: Path) -> None:
    tomllib.loads(block("toml"))
    (tmp_path / "page.toml").write_text(block("toml"))
    rollout = load_settings(tmp_path / "page.toml").rollout
    ids = tuple(character_tokenizer()(SENTENCE)["input_ids"])
    prompt = Prompt(0, "q", SENTENCE, "42", ids)
    assert misfit(prompt, rollout) == ""
    assert misfit(prompt, load_settings(None).rollout), "the defaults do not"
    assert f"up to {rollout.context - rollout.max_new_tokens} tokens" in block("toml")


class Scripted:
    """Says these, one a turn, and keeps what it was asked."""

    def __init__(self, *words: str) -> None:
        self.words = list(words)
        self.asked: list[list[dict[str, str]]] = []

    async def say(self, messages: list[dict[str, str]], **options: Any) -> str:
        self.asked.append([dict(message) for message in messages])
        return self.words.pop(0)


@pytest.mark.parametrize(("words", "reward"), [(("<tool>look", "42"), 1.0), (("41",), 0.0), (("<tool>",) * 4, 0.0)])
def test_the_code_plays(words: tuple[str, ...], reward: float) -> None:
    page: dict[str, Any] = {}
    exec(block("python"), page)
    agent = Scripted(*words)
    assert asyncio.run(page["play"](SENTENCE, "42", agent)) == reward
    assert agent.words == []
    for before, after in zip(agent.asked, agent.asked[1:], strict=False):
        assert after[: len(before)] == before, "messages only grow"
