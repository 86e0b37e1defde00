"""Checks prompts and reward before anything is prepared, in a process that needs no large library.

The user's code runs here first. It may hang where no signal reaches it, so every call is announced, and timed by the
main process. Knows no policy and no run directory.
"""

from __future__ import annotations

from offbeat.backends.messages import Checked, CheckHello, ForeignCall, Preparing, ToChecker
from offbeat.backends.worker import Link, work
from offbeat.ports import Task
from offbeat.records import Prompt
from offbeat.settings import Settings, settings_from
from offbeat.tasks import import_reward, make_task
from offbeat.tasks.verdicts import one_line, shown

IMPORT_SECONDS = 120.0
"""What the import of a reward may take: it may load large libraries from a cold disk."""


def main(link: Link) -> None:
    hello = link.next()
    assert isinstance(hello, CheckHello)
    settings = settings_from(hello.settings)
    check_reward(link, make_task(settings.task, settings.run.seed), settings)
    link.send(Checked())
    link.drain()


def check_reward(link: Link, task: Task, settings: Settings) -> None:
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
    work(main, ToChecker)
