"""Prepares a run directory in a process of its own, where it may use every core: policy, version 0, its canary."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from offbeat.backends.messages import Prepared, PrepareHello, Preparing, ToPreparer
from offbeat.backends.weights import Canary, publish
from offbeat.backends.worker import Link, set_threads, work
from offbeat.errors import TaskError
from offbeat.settings import settings_from
from offbeat.tasks import make_task

CANARY_TOKENS = 32
VALIDATION_CALLS = 5
"""The check of a task may take as long as so many rewards at their time limit."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TaskError inside the block when it takes longer: a reward function may hang."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TaskError(f"the check of the task took more than {seconds:g} s: its reward hangs; mend the reward")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main(link: Link) -> None:
    hello = link.next()
    assert isinstance(hello, PrepareHello)
    settings = settings_from(hello.settings)
    task = make_task(settings.task, settings.run.seed)
    with time_limit(VALIDATION_CALLS * settings.task.reward_seconds):
        task.validate()
    set_threads(os.cpu_count() or 1)
    from offbeat.backends.alignment import attach_alignment
    from offbeat.learner.step import PolicyLearner
    from offbeat.models import prepare_policy
    from offbeat.models.tokens import encode_prompt, encode_response, load_tokenizer

    run_directory = Path(hello.directory)
    source = prepare_policy(settings, lambda note, share: link.send(Preparing(note, share)))
    policy = run_directory / "policy"
    policy.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix in {".json", ".jinja", ".model", ".txt"} and not file.name.endswith(".index.json"):
            shutil.copy2(file, policy / file.name)
    learner = PolicyLearner.open(source, settings, attach=attach_alignment)
    tokenizer = load_tokenizer(policy)
    prompt = task.held_out(1)[0]
    prompt_ids = tuple(encode_prompt(tokenizer, prompt.text))
    response_ids = tuple(encode_response(tokenizer, prompt.answer)[:CANARY_TOKENS])

    def canary() -> Canary:
        return Canary(prompt_ids, response_ids, tuple(learner.score(prompt_ids, response_ids)))

    manifest = publish(run_directory, 0, learner.publish, canary)
    parameters = sum(parameter.numel() for parameter in learner.policy.model.parameters())
    link.send(Prepared(manifest.digest, parameters))
    link.drain()


if __name__ == "__main__":
    work(main, ToPreparer)
