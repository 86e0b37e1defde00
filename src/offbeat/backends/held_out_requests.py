"""An evaluation under way in a rollout process: which request answers which held-out prompt, greedy or sampled."""

from __future__ import annotations

from offbeat.backends.messages import AnswerHeldOut, HeldOutAnswers
from offbeat.eventtime.streams import stream_seed
from offbeat.ports import Completion, Request, Sampling


class HeldOutRequests:
    """Every prompt twice: greedy, then sampled at temperature 1. Ids run down from `first_id`, below 0: no trajectory
    has such a one.
    """

    def __init__(self, asked: AnswerHeldOut, first_id: int, seed: int, max_new_tokens: int) -> None:
        self.lane = asked.lane
        self.version = asked.version
        count = len(asked.prompts)
        self.waiting = [
            Request(
                request_id=first_id - place,
                version=asked.version,
                prompt_ids=asked.prompts[place % count],
                seed=stream_seed(seed, "held-out", place),
                max_new_tokens=max_new_tokens,
                sampling=Sampling(1.0 if place >= count else 0.0),
            )
            for place in reversed(range(2 * count))
        ]
        self.first_id = first_id
        self.answers: list[tuple[int, ...] | None] = [None] * (2 * count)
        self.running = 0

    def answered(self, done: Completion) -> None:
        self.running -= 1
        self.answers[self.first_id - done.request_id] = done.token_ids

    def result(self) -> HeldOutAnswers | None:
        """Once all are answered."""
        if any(answer is None for answer in self.answers):
            return None
        answers = [answer or () for answer in self.answers]
        half = len(answers) // 2
        return HeldOutAnswers(self.lane, self.version, tuple(answers[:half]), tuple(answers[half:]))
