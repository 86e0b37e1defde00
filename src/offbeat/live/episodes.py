"""The episodes of a run: their process, their turns on the lanes, their end as a trajectory, and the exam.

*Attempts*: what an attempt that was given up still says or is told is dropped. An episode that raised, or whose process
ended, is a failed attempt, never a reward of 0. A process that does not listen for `seconds` is ended: its episodes
fail, others are begun in the next. Evaluations are episodes, too, with ids below 0 and the round as their attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from offbeat import events as e
from offbeat.backends import messages as m
from offbeat.backends.agent_messages import (
    AbortEpisodes,
    AgentsHello,
    AskTurn,
    EpisodeIs,
    EpisodeRaised,
    RunEpisode,
    TurnIs,
)
from offbeat.backends.backend import Backend
from offbeat.backends.local import Died, Name
from offbeat.live.held_out import MARKED_SECONDS
from offbeat.records import Prompt, Trajectory

AGENTS = Name("agents")


class Place(NamedTuple):
    """Where an episode's turns are sampled, under which version. `slot` is its own from its begin to its end, whether
    one of its turns is being decoded or a tool is; the lowest that no other episode of the lane has."""

    attempt: int
    lane: int
    version: int
    slot: int


class Exam:
    """An evaluation under way: episode -1 - i is prompt i greedy, those after all of these are sampled."""

    def __init__(self, turn: int, lane: int, version: int, prompts: list[Prompt]) -> None:
        self.round, self.lane, self.version, self.prompts = turn, lane, version, prompts
        self.marks: dict[int, float | None] = {}
        self.reason = ""

    def greedy(self, trajectory_id: int) -> bool:
        return -1 - trajectory_id < len(self.prompts)

    def result(self) -> e.Event | None:
        """Once every episode has ended: those that failed are left out, never counted as wrong."""
        if len(self.marks) < 2 * len(self.prompts):
            return None
        shares = []
        for wanted in (True, False):
            rewards = [r for i, r in self.marks.items() if self.greedy(i) is wanted and r is not None]
            if not rewards:
                return e.EvaluationFailed(self.version, self.reason)
            shares.append(sum(reward == 1.0 for reward in rewards) / len(rewards))
        return e.Evaluated(self.version, len(self.prompts), *shares)


class EpisodeDesk:
    """`tell_lane` sends a message to a lane; events are what becomes of what is heard."""

    def __init__(
        self,
        backend: Backend,
        hello: AgentsHello,
        tell_lane: Callable[[Any], None],
        seconds: float,
        attempts: int,
    ) -> None:
        self._backend = backend
        self._hello = hello
        self._tell_lane = tell_lane
        self._seconds = seconds
        self._attempts = attempts
        self._failed_starts = 0
        self._heard_at: float | None = None
        self._running: dict[int, Place] = {}
        self._last_turn: dict[int, m.TurnSampled] = {}
        self._began: dict[int, float] = {}
        self._exam: Exam | None = None
        self._rounds = 0
        self._said_at = 0.0
        self.hopeless = ""
        """Why no process for episodes can be had; empty as long as one may come up."""

    def start(self) -> None:
        self._heard_at = None
        try:
            self._backend.start(AGENTS, self._hello)
        except OSError as error:
            self.hopeless = f"the episodes' process cannot be started: {error.strerror or error}"

    # -- orders ------------------------------------------------------------------------------------------------

    def begin(self, command: e.Generate, prompt: Prompt) -> None:
        self._tell_lane(
            m.Sample(
                command.lane,
                command.version,
                prompt.token_ids,
                command.trajectory_ids,
                command.attempts,
                episodes=True,
            )
        )
        for trajectory_id, attempt in zip(command.trajectory_ids, command.attempts, strict=True):
            self._forget(trajectory_id)
            slot = self._free_slot(command.lane)
            self._running[trajectory_id] = Place(attempt, command.lane, command.version, slot)
            self._backend.send(AGENTS, RunEpisode(trajectory_id, attempt, command.version, prompt))

    def abort(self, trajectory_ids: tuple[int, ...]) -> None:
        """Nobody wants these any more."""
        for trajectory_id in trajectory_ids:
            self._forget(trajectory_id)
        self._backend.send(AGENTS, AbortEpisodes(trajectory_ids))

    def examine(self, command: e.Evaluate, prompts: list[Prompt]) -> None:
        """Play every held-out prompt twice: greedy, and sampled at temperature 1."""
        self._rounds += 1
        self._exam = Exam(self._rounds, command.lane, command.version, prompts)
        for place in range(2 * len(prompts)):
            self._begin_exam(self._exam, -1 - place)

    def _begin_exam(self, exam: Exam, trajectory_id: int) -> None:
        prompt = exam.prompts[(-1 - trajectory_id) % len(exam.prompts)]
        self._running[trajectory_id] = Place(exam.round, exam.lane, exam.version, -1)
        self._backend.send(AGENTS, RunEpisode(trajectory_id, exam.round, exam.version, prompt))

    # -- what is heard -----------------------------------------------------------------------------------------

    def sampled(self, turn: m.TurnSampled) -> None:
        """A lane has answered a turn."""
        if self._is_present(turn):
            self._last_turn[turn.trajectory_id] = turn
            self._began.setdefault(turn.trajectory_id, turn.started)
            answer = TurnIs(turn.trajectory_id, turn.attempt, turn.turn, turn.span, turn.finish_reason)
            self._backend.send(AGENTS, answer)

    def heard(self, message: Any, now: float) -> tuple[Trajectory | None, list[e.Event]]:
        """A trajectory that is done, to be stored before its `Finished` is recorded, and what has happened."""
        self._heard_at = now
        match message:
            case AskTurn():
                self._ask(message)
            case EpisodeIs():
                self._failed_starts = 0
                return self._ended(message, now)
            case EpisodeRaised():
                return None, self._raised(message.trajectory_id, message.attempt, message.reason, now)
            case Died():
                return None, self._died(message.reason, now)
        return None, []

    def out_of_time(self, now: float) -> list[e.Event]:
        """End a process that does not listen although episodes are under way."""
        if self._heard_at is None or not self._running or now - self._heard_at < self._seconds:
            return []
        return self._died(f"an episode kept the others from running for {self._seconds:g} s", now)

    def _is_present(self, message: Any) -> bool:
        place = self._running.get(message.trajectory_id)
        return place is not None and place.attempt == message.attempt

    def _ask(self, turn: AskTurn) -> None:
        if not self._is_present(turn):
            return
        place = self._running[turn.trajectory_id]
        exam = self._exam
        greedy = exam is not None and turn.trajectory_id < 0 and exam.greedy(turn.trajectory_id)
        self._tell_lane(
            m.TakeTurn(
                place.lane, turn.trajectory_id, turn.attempt, turn.turn, place.version, turn.context_ids,
                turn.max_new_tokens, greedy,
            )
        )  # fmt: skip

    def _ended(self, done: EpisodeIs, now: float) -> tuple[Trajectory | None, list[e.Event]]:
        if not self._is_present(done):
            return None, []
        if done.trajectory_id < 0:
            return None, self._marked(done.trajectory_id, done.reward, now)
        place, last = self._running[done.trajectory_id], self._last_turn[done.trajectory_id]
        trajectory = Trajectory(
            done.trajectory_id, done.attempt, (done.span,), done.finish_reason, reward=done.reward
        )  # fmt: skip
        finished = e.Finished(
            trajectory_id=done.trajectory_id,
            attempt=done.attempt,
            lane=place.lane,
            slot=place.slot,
            version=done.span.version,
            tokens=len(done.span.token_ids),
            finish_reason=done.finish_reason,
            started=self._began[done.trajectory_id],
            ended=last.ended,
        )
        self._tell_lane(m.AbortSamples(place.lane, (done.trajectory_id,)))
        self._forget(done.trajectory_id)
        return trajectory, [finished]

    def _raised(self, trajectory_id: int, attempt: int, reason: str, now: float) -> list[e.Event]:
        place = self._running.get(trajectory_id)
        if place is None or place.attempt != attempt:
            return []
        if trajectory_id < 0:
            if self._exam is not None:
                self._exam.reason = reason
            return self._marked(trajectory_id, None, now)
        self._tell_lane(m.AbortSamples(place.lane, (trajectory_id,)))
        self._forget(trajectory_id)
        return [e.GenerationFailed(trajectory_id, attempt, reason)]

    def _marked(self, trajectory_id: int, reward: float | None, now: float) -> list[e.Event]:
        self._forget(trajectory_id)
        exam = self._exam
        if exam is None:
            return []
        exam.marks[trajectory_id] = reward
        result = exam.result()
        if result is not None:
            self._exam = None
            return [result]
        if now - self._said_at < MARKED_SECONDS:
            return []
        self._said_at = now
        return [e.Marked(exam.version, len(exam.marks), 2 * len(exam.prompts))]

    def _died(self, reason: str, now: float) -> list[e.Event]:
        """Every episode is lost with its process. What the exam has not marked is played again."""
        if self._heard_at is None or not self._running:
            self._failed_starts += 1
        if self._failed_starts >= self._attempts:
            self.hopeless = f"the episodes' process did not come up {self._failed_starts} times in a row: {reason}"
            return []
        self.start()
        events: list[e.Event] = []
        for trajectory_id, place in sorted(self._running.items()):
            if trajectory_id >= 0:
                events += self._raised(trajectory_id, place.attempt, reason, now)
        if self._exam is not None:
            for trajectory_id in [i for i in self._running if i < 0]:
                self._begin_exam(self._exam, trajectory_id)
        return events

    def _free_slot(self, lane: int) -> int:
        taken = {place.slot for place in self._running.values() if place.lane == lane}
        return next(slot for slot in range(len(taken) + 1) if slot not in taken)

    def _forget(self, trajectory_id: int) -> None:
        self._running.pop(trajectory_id, None)
        self._last_turn.pop(trajectory_id, None)
        self._began.pop(trajectory_id, None)
