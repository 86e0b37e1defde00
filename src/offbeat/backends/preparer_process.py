"""Prepares a run directory in a process of its own, where it may use every core: policy, version 0, its canary.

The user's code runs here first. It may hang where no signal reaches it, so every call is announced, and timed by the
main process.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from offbeat.backends.messages import ForeignCall, Prepared, PrepareHello, Preparing, ToPreparer
from offbeat.backends.weights import Canary, publish
from offbeat.backends.worker import Link, set_threads, work
from offbeat.ports import Task
from offbeat.records import Prompt
from offbeat.settings import Settings, settings_from
from offbeat.tasks import import_reward, make_task
from offbeat.tasks.verdicts import one_line, shown

CANARY_TOKENS = 32
IMPORT_SECONDS = 120.0
"""What the import of a reward may take: it may load large libraries from a cold disk."""


def main(link: Link) -> None:
    hello = link.next()
    assert isinstance(hello, PrepareHello)
    settings = settings_from(hello.settings)
    task = make_task(settings.task, settings.run.seed)
    _check_reward(link, task, settings)
    set_threads(os.cpu_count() or 1)
    from offbeat.backends.alignment import attach_alignment
    from offbeat.learner.checkpoint import save_base
    from offbeat.learner.lora import check_peft
    from offbeat.learner.policy import Policy
    from offbeat.learner.step import PolicyLearner
    from offbeat.models import prepare_policy
    from offbeat.models.prompts import encoded_exam
    from offbeat.models.tokens import encode_response, load_tokenizer

    if settings.learner.lora is not None:
        check_peft()
    run_directory = Path(hello.directory)
    source = prepare_policy(settings, lambda note, share: link.send(Preparing(note, share)))
    policy = run_directory / "policy"
    policy.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix in {".json", ".jinja", ".model", ".txt"} and not file.name.endswith(".index.json"):
            shutil.copy2(file, policy / file.name)
    if settings.learner.lora is not None:
        save_base(policy, Policy.load(source))
        source = policy
    learner = PolicyLearner.open(source, settings, attach=attach_alignment)
    tokenizer = load_tokenizer(policy)
    [prompt] = encoded_exam(tokenizer, task, 1)
    prompt_ids = prompt.token_ids
    response_ids = tuple(
        encode_response(tokenizer, prompt.answer)[: min(CANARY_TOKENS, settings.rollout.max_new_tokens)]
    )

    def canary() -> Canary:
        return Canary(prompt_ids, response_ids, tuple(learner.score(prompt_ids, response_ids)))

    manifest = publish(run_directory, 0, learner.publish, canary)
    parameters = sum(parameter.numel() for parameter in learner.policy.model.parameters() if parameter.requires_grad)
    link.send(Prepared(manifest.digest, parameters))
    link.drain()


def _check_reward(link: Link, task: Task, settings: Settings) -> None:
    """Import the user's reward and try it on gold and wrong answers. Raises TaskError."""

    def announce(seconds: float, what: str, remedy: str) -> None:
        link.send(ForeignCall(seconds, f"{what} took more than {seconds:g} s; {remedy}"))
        link.drain()

    def calling(prompt: Prompt, response: str) -> None:
        what = f"task {task.name}: the reward of prompt {shown(prompt)} for the response {one_line(repr(response))}"
        announce(settings.task.reward_seconds, what, "mend the reward or raise task.reward_seconds")

    announce(IMPORT_SECONDS, f"task {task.name}: the import of its reward", "mend the module")
    import_reward(settings.task)
    link.send(Preparing("task: checking prompts and reward", 0.0))
    task.validate(calling)
    link.send(Preparing("task: checked", 1.0))


if __name__ == "__main__":
    work(main, ToPreparer)
