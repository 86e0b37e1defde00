"""Responses as the reward sees them: without the token that ended them, with every other one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offbeat.live.prompts import PromptBook
from offbeat.models.presets import BOS, EOS, PAD, UNKNOWN, Preset, build_model, character_tokenizer, write_policy
from offbeat.records import Span, Trajectory
from offbeat.settings import Settings
from offbeat.tasks import make_task

IDS = character_tokenizer().get_vocab()


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    write_policy(build_model(Preset(width=8, hidden=8, layers=1, heads=1, kv_heads=1), seed=0), tmp_path)
    return tmp_path


def book(policy: Path) -> PromptBook:
    return PromptBook(make_task(Settings().task, 0), policy, 1)


def text(prompts: PromptBook, *tokens: str) -> str:
    ids = tuple(IDS[token] for token in tokens)
    trajectory = Trajectory(0, 0, (Span(0, ids, (-1.0,) * len(ids)),), "stop")
    told = prompts.with_text(trajectory).text
    assert told == prompts.text(ids)
    return told


def test_a_response_with_special_tokens_in_it_is_not_the_one_without(policy: Path) -> None:
    prompts = book(policy)
    assert text(prompts, "1", "2", EOS) == text(prompts, "1", "2") == "12"
    for special in (PAD, BOS, UNKNOWN):
        assert text(prompts, "1", special, "2", EOS) == f"1{special}2"
        assert text(prompts, "1", "2", special) == f"12{special}"


def test_the_end_is_what_the_engine_stops_at(policy: Path) -> None:
    """Chat models name several ends; the tokenizer knows one of them."""
    file = policy / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": [IDS[PAD], IDS[UNKNOWN]]}))
    prompts = book(policy)
    assert text(prompts, "1", PAD) == text(prompts, "1", UNKNOWN) == "1"
    assert text(prompts, "1", UNKNOWN, PAD) == f"1{UNKNOWN}"
    assert text(prompts, "1", EOS) == f"1{EOS}"
