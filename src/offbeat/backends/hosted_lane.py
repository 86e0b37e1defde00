"""One lane of a rollout process: its slots, what it samples in them, what it says of that.

Invariant: no more than `slots` of its requests are with the engine; every trajectory it was given is answered,
given up or aborted. Decoding is the process's: `offbeat.backends.rollout_process`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from offbeat.backends import messages as m
from offbeat.backends.parcels import take_parcel, write_parcel
from offbeat.errors import EngineError
from offbeat.eventtime.streams import stream_seed
from offbeat.ports import Completion, Generator, Parcel, Request, Sampling
from offbeat.records import Trajectory
from offbeat.settings import Settings

Waiting = Request | Parcel


class HostedLane:
    """`attempts` are the trajectories it has; those with the engine have a slot since `since`, the others wait. An
    episode, held under its version in `episodes`, has a slot only while one of its turns is decoded.
    """

    def __init__(
        self,
        lane: int,
        run_directory: Path,
        settings: Settings,
        engine: Generator,
        say: Callable[[Any], None],
        now: Callable[[], float],
    ) -> None:
        self.lane = lane
        self.run_directory = run_directory
        self.engine = engine
        self.say = say
        self.now = now
        self.seed = settings.run.seed
        self.max_new_tokens = settings.rollout.max_new_tokens
        self.sampling = Sampling(settings.rollout.temperature, settings.rollout.top_k, settings.rollout.top_p)
        self.attempts: dict[int, int] = {}
        self.episodes: dict[int, int] = {}
        self.turn: dict[int, int] = {}
        self.earlier: dict[int, int] = {}
        """Tokens of an episode's turns before the present one."""
        self.waiting: deque[Waiting] = deque()
        self.slot: dict[int, int] = {}
        self.since: dict[int, float] = {}
        self.free_slots = list(range(settings.rollout.slots))
        self.paused = False
        self.decoded = 0

    @property
    def busy(self) -> bool:
        return bool(self.slot or self.waiting) and not self.paused

    def sample(self, message: m.Sample) -> None:
        for trajectory_id, attempt in zip(message.trajectory_ids, message.attempts, strict=True):
            self.attempts[trajectory_id] = attempt
            if message.episodes:
                self.episodes[trajectory_id] = message.version
                continue
            self.waiting.append(
                Request(
                    request_id=trajectory_id,
                    version=message.version,
                    prompt_ids=message.prompt_ids,
                    seed=stream_seed(self.seed, "trajectory", trajectory_id),
                    max_new_tokens=self.max_new_tokens,
                    sampling=self.sampling,
                )
            )

    def take_turn(self, message: m.TakeTurn) -> None:
        """C1: the version is the one that the episode was given to this lane under."""
        trajectory_id = message.trajectory_id
        if self.attempts.get(trajectory_id) != message.attempt:
            return
        self.engine.abort([trajectory_id])
        self._free_slot(trajectory_id)
        self.turn[trajectory_id] = message.turn
        self.waiting.append(
            Request(
                request_id=trajectory_id,
                version=self.episodes[trajectory_id],
                prompt_ids=message.context_ids,
                seed=stream_seed(self.seed, "trajectory", trajectory_id, message.turn),
                max_new_tokens=message.max_new_tokens,
                sampling=self.sampling,
            )
        )

    def feed(self) -> None:
        """Keep the lane's slots filled, and no more than these."""
        while self.waiting and self.free_slots and not self.paused:
            item = self.waiting.popleft()
            trajectory_id = _request(item).request_id
            try:
                if isinstance(item, Parcel):
                    self.engine.attach(item)
                else:
                    self.engine.submit(item)
            except EngineError as error:
                self.failed(trajectory_id, str(error))
                continue
            self.slot[trajectory_id] = heapq.heappop(self.free_slots)
            self.since[trajectory_id] = self.now()

    def abort(self, trajectory_ids: tuple[int, ...]) -> None:
        self.engine.abort([i for i in trajectory_ids if i in self.slot])
        for trajectory_id in trajectory_ids:
            self._forget(trajectory_id)

    def pause(self) -> None:
        self.paused = True
        self.engine.suspend(tuple(self.slot))

    def go_on(self, message: m.ContinueSamples) -> None:
        self.paused = False
        self.engine.switch(tuple(self.slot), message.version, message.keep_cache)
        self.waiting = deque(_under(item, message.version) for item in self.waiting)

    def give_up(self, message: m.GiveUpSamples) -> None:
        """What is still here leaves; what ended before has been said already."""
        here = [i for i in message.trajectory_ids if i in self.attempts]
        parcels = {_request(p).request_id: p for p in map(_parcel, self.waiting)}
        parcels |= {
            p.request.request_id: p
            for p in self.engine.detach([i for i in here if i in self.slot], message.keep_cache)
        }  # fmt: skip
        now = self.now()
        answer = m.SamplesGivenUp(
            lane=self.lane,
            trajectory_ids=tuple(here),
            attempts=tuple(self.attempts[i] for i in here),
            tokens=tuple(len(parcels[i].token_ids) for i in here),
            slots=tuple(self.slot.get(i, -1) for i in here),
            started=tuple(self.since.get(i, now) for i in here),
            ended=now,
        )
        for trajectory_id in here:
            write_parcel(self.run_directory, self.attempts[trajectory_id], parcels[trajectory_id])
            self._forget(trajectory_id)
        self.say(answer)

    def take_up(self, message: m.TakeUpSamples) -> None:
        """They come before all that waits, oldest first."""
        for trajectory_id, attempt in reversed(list(zip(message.trajectory_ids, message.attempts, strict=True))):
            try:
                parcel = take_parcel(self.run_directory, trajectory_id, attempt)
            except EngineError as error:
                self.say(m.SampleFailed(self.lane, trajectory_id, attempt, str(error)))
                continue
            self.attempts[trajectory_id] = attempt
            self.waiting.appendleft(parcel)

    def finished(self, done: Completion, now: float) -> None:
        trajectory_id = done.request_id
        if trajectory_id in self.episodes:
            self._turn_finished(done, now)
            return
        trajectory = Trajectory(trajectory_id, self.attempts[trajectory_id], done.spans, done.finish_reason)
        self.decoded += len(done.token_ids)
        self.say(m.Sampled(self.lane, trajectory, self.slot[trajectory_id], self.since[trajectory_id], now))
        self._forget(trajectory_id)

    def _turn_finished(self, done: Completion, now: float) -> None:
        trajectory_id = done.request_id
        slot, since = self.slot[trajectory_id], self.since[trajectory_id]
        self.earlier[trajectory_id] = self.earlier.get(trajectory_id, 0) + len(done.token_ids)
        self._free_slot(trajectory_id)
        attempt, turn = self.attempts[trajectory_id], self.turn[trajectory_id]
        self.say(
            m.TurnSampled(self.lane, trajectory_id, attempt, turn, done.span, done.finish_reason, slot, since, now)
        )

    def failed(self, trajectory_id: int, reason: str) -> None:
        self.say(m.SampleFailed(self.lane, trajectory_id, self.attempts[trajectory_id], reason))
        self._forget(trajectory_id)

    def beat(self, tokens: dict[int, int], parked: tuple[int, ...], held_out: int) -> m.Beat:
        """`tokens` of every request with the engine, `held_out` tokens of evaluations this lane answers for."""
        mine = {i: self.earlier.get(i, 0) + tokens.get(i, 0) for i in self.attempts}
        aside = tuple(i for i in parked if i in self.slot)
        running = sum(tokens.get(i, 0) > 0 for i in mine) - sum(mine[i] > 0 for i in aside)
        cached = sum(mine[i] for i in self.slot if i not in aside)
        total = self.decoded + sum(mine.values()) + held_out
        return m.Beat(self.lane, tuple(mine), tuple(mine.values()), running, total, aside, cached)

    def _forget(self, trajectory_id: int) -> None:
        self.attempts.pop(trajectory_id, None)
        self.episodes.pop(trajectory_id, None)
        self.turn.pop(trajectory_id, None)
        self.decoded += self.earlier.pop(trajectory_id, 0)
        self._free_slot(trajectory_id)

    def _free_slot(self, trajectory_id: int) -> None:
        """It is with the engine no more, and does not wait either."""
        self.since.pop(trajectory_id, None)
        slot = self.slot.pop(trajectory_id, None)
        if slot is not None:
            heapq.heappush(self.free_slots, slot)
        else:
            self.waiting = deque(item for item in self.waiting if _request(item).request_id != trajectory_id)


def _request(item: Waiting) -> Request:
    return item.request if isinstance(item, Parcel) else item


def _parcel(item: Waiting) -> Parcel:
    return item if isinstance(item, Parcel) else Parcel(item)


def _under(item: Waiting, version: int) -> Waiting:
    request = msgspec.structs.replace(_request(item), version=version)
    return msgspec.structs.replace(item, request=request) if isinstance(item, Parcel) else request
