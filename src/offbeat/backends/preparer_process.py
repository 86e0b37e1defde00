"""Prepares a run directory in a process of its own, where it may use every core: policy, version 0, its canary.

Prompts and reward were checked before (`checker_process`): no reward is called here.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from offbeat.backends.messages import Prepared, PrepareHello, Preparing, ToPreparer
from offbeat.backends.weights import Canary, publish
from offbeat.backends.worker import Link, set_threads, work
from offbeat.settings import settings_from
from offbeat.tasks import make_task

CANARY_TOKENS = 32


def main(link: Link) -> None:
    hello = link.next()
    assert isinstance(hello, PrepareHello)
    settings = settings_from(hello.settings)
    task = make_task(settings.task, settings.run.seed)
    set_threads(os.cpu_count() or 1)
    from offbeat.backends.alignment import attach_alignment
    from offbeat.learner.checkpoint import save_base
    from offbeat.learner.lora import check_peft
    from offbeat.learner.matmul import check_matmul_precision
    from offbeat.learner.policy import Policy
    from offbeat.learner.step import PolicyLearner
    from offbeat.models import prepare_policy
    from offbeat.models.prompts import encoded_exam
    from offbeat.models.tokens import encode_response, load_tokenizer

    if settings.learner.lora is not None:
        check_peft()
    check_matmul_precision(settings.learner.matmul_precision)
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


if __name__ == "__main__":
    work(main, ToPreparer)
