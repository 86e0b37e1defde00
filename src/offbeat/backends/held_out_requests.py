"""An evaluation under way in a rollout process: which request answers which held-out prompt, greedy or sampled; and
the turns of its episodes, where the task is one of episodes."""

from __future__ import annotations

from collections import deque

from offbeat.backends.messages import AnswerHeldOut, HeldOutAnswers, TakeTurn, TurnSampled
from offbeat.eventtime.streams import stream_seed
from offbeat.ports import Completion, Generator, Request, Sampling


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


class ExamTurns:
    """Turns of held-out episodes, at most `spare` with the engine. An episode's id, below 0, is its request's."""

    def __init__(self, seed: int, spare: int) -> None:
        self._seed = seed
        self._spare = spare
        self.waiting: deque[TakeTurn] = deque()
        self.running: dict[int, tuple[TakeTurn, float]] = {}

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def feed(self, engine: Generator, now: float) -> None:
        while self.waiting and len(self.running) < self._spare:
            turn = self.waiting.popleft()
            engine.abort([turn.trajectory_id])  # of an evaluation that was given up, or a turn nobody waits for
            self.running[turn.trajectory_id] = turn, now
            engine.submit(
                Request(
                    request_id=turn.trajectory_id,
                    version=turn.version,
                    prompt_ids=turn.context_ids,
                    seed=stream_seed(self._seed, "held-out", turn.trajectory_id, turn.turn),
                    max_new_tokens=turn.max_new_tokens,
                    sampling=Sampling(0.0 if turn.greedy else 1.0),
                )
            )

    def answered(self, done: Completion, now: float) -> TurnSampled:
        turn, began = self.running.pop(done.request_id)
        return TurnSampled(
            turn.lane, turn.trajectory_id, turn.attempt, turn.turn, done.span, done.finish_reason, done.slot, began, now
        )
