"""Rewards behind a channel: a reward function may raise, hang or lie here without touching the run.

The main process gives each call its time and ends this process when it runs out.
"""

from __future__ import annotations

import math

from offbeat.backends.messages import ScoreIs, ScoreRaised, ScorerHello, ScorerUp, ScoreThis, ToScorer
from offbeat.backends.worker import Link, work
from offbeat.settings import settings_from
from offbeat.tasks import import_reward, make_task


def main(link: Link) -> None:
    hello = link.next()
    assert isinstance(hello, ScorerHello)
    settings = settings_from(hello.settings)
    task = make_task(settings.task, settings.run.seed)
    import_reward(settings.task)
    link.send(ScorerUp())
    while True:
        message: ToScorer = link.next()
        assert isinstance(message, ScoreThis)
        try:
            reward = task.reward(message.prompt, message.response)
        except (Exception, SystemExit) as error:  # the user's code may raise anything; it becomes a reported failure
            link.send(ScoreRaised(message.ticket, f"raised {type(error).__name__}: {error}"))
            continue
        if isinstance(reward, (int, float)) and math.isfinite(reward):
            link.send(ScoreIs(message.ticket, float(reward)))
        else:
            link.send(ScoreRaised(message.ticket, f"gave {reward!r}, not a finite number"))


if __name__ == "__main__":
    work(main, ToScorer)
