"""The audit notices a prompt that is mixed up or passed over, and a learner that trained on something else."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from offbeat import events as e
from offbeat.report.audit import audit
from offbeat.report.read import Run
from tests.report.audited_run import change, commands, consumed_key, good_run, only, says, set_to, with_payload


@pytest.fixture
def good() -> Run:
    return good_run()


def test_a_restart_of_another_prompt(good: Run) -> None:
    again = next(c for c in commands(good, e.Generate) if 0 not in c.attempts)
    found = audit(change(good, command=only(again, set_to(prompt_id=again.prompt_id + 7))))
    assert found.breaches["prompts"] == 1
    says(found, "prompts", f"group {again.group_id}: Generate", f"issued was {again.prompt_id}")


def test_scored_against_another_prompt(good: Run) -> None:
    score = commands(good, e.Score)[5]
    found = audit(change(good, command=only(score, set_to(prompt_id=score.prompt_id + 3))))
    assert found.breaches["prompts"] == 1
    says(found, "prompts", f"group {score.group_id}: Score")


@pytest.mark.parametrize("gone", [True, False])
def test_the_stored_prompt_is_another_or_none(good: Run, gone: bool) -> None:
    group_id = consumed_key(good)[0] // good.group_size
    prompts = dict(good.prompts)
    taken = prompts.pop(group_id)
    if not gone:
        prompts[group_id] = msgspec.structs.replace(taken, prompt_id=taken.prompt_id + 99)
    found = audit(replace(good, prompts=prompts))
    assert found.breaches["prompts"] == 1
    says(found, "prompts", f"group {group_id}:", "none" if gone else f"prompt {taken.prompt_id + 99}")


def test_every_second_prompt_is_passed_over(good: Run) -> None:
    """As by a scheduler that takes only the short ones of what it draws."""

    def doubled(command: e.Command) -> e.Command:
        if isinstance(command, e.Generate | e.Score):
            return msgspec.structs.replace(command, prompt_id=2 * command.prompt_id)
        return command

    prompts = {g: msgspec.structs.replace(p, prompt_id=2 * p.prompt_id) for g, p in good.prompts.items()}
    found = audit(replace(change(good, command=doubled), prompts=prompts))
    issued = len({c.prompt_id for c in commands(good, e.Generate)})
    assert found.breaches["prompts"] == (issued - 1) * good.group_size
    says(found, "prompts", "prompt 1: passed over")


def test_consumed_without_a_stored_reward(good: Run) -> None:
    key = consumed_key(good)
    found = audit(with_payload(good, key, reward=None))
    assert found.breaches["payloads"] == 1
    says(found, "payloads", f"trajectory {key[0]},", "no reward is stored")


@pytest.mark.parametrize(
    ("law", "field", "added"), [("rewards", "reward_mean", 0.5), ("payloads", "tokens", 500)], ids=["reward", "tokens"]
)
def test_the_learner_trained_on_something_else(good: Run, law: str, field: str, added: float) -> None:
    trained = [r.event for r in good.records if isinstance(r.event, e.Trained)][2]
    report = msgspec.structs.replace(trained.report, **{field: getattr(trained.report, field) + added})
    found = audit(change(good, event=only(trained, set_to(report=report))))
    assert found.breaches[law] == 1
    says(found, law, f"iteration {trained.version - 1}", "the learner reports")
