"""A prompt as the policy sees it: one user turn, a system turn before it where the task has one."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree

import pytest

from offbeat.errors import SettingsError, TaskError
from offbeat.models.prompts import encoded_exam, encoded_prompt
from offbeat.models.tokens import decode_response, load_tokenizer
from offbeat.settings import JsonlTask, ReasoningGymTask, settings_from
from offbeat.tasks import make_task
from tests.serve.conftest import policy

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }};{% endfor %}{% if add_generation_prompt %}a{% endif %}"
)


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """A policy whose chat template says who speaks."""
    directory = tmp_path / "told"
    copytree(policy(), directory)
    config = directory / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": TEMPLATE}))
    return directory


@pytest.mark.parametrize("system", ["", "say a number"])
def test_a_system_turn_goes_before_every_prompt_of_training_and_exam(told: Path, tmp_path: Path, system: str) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) + "\n" for i in range(9)))
    gym = ReasoningGymTask(dataset="chain_sum", options={"min_terms": 2, "max_terms": 2}, system=system)
    tokenizer = load_tokenizer(told)
    for settings in (gym, JsonlTask(file=str(lines), held_out=3, system=system)):
        task = make_task(settings, 0)
        for prompt in (encoded_prompt(tokenizer, task, 0), *encoded_exam(tokenizer, task, 2)):
            said = decode_response(tokenizer, list(prompt.token_ids))
            assert said == (f"s{system};" if system else "") + f"u{prompt.text};a"


def test_a_system_turn_that_nobody_could_hear_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"task\.system: presets have no chat template"):
        settings_from({"task": {"name": "reasoning-gym", "dataset": "chain_sum", "system": "be brief"}})
    task = make_task(ReasoningGymTask(dataset="chain_sum", system="be brief"), 0)
    with pytest.raises(TaskError, match=r"task\.system = 'be brief': the model has no chat template"):
        encoded_prompt(load_tokenizer(policy()), task, 0)
