"""A rollout lane: the local engine behind a channel.

C1 is kept by the engine (a request is decoded by its own version or not at all); the publish invariant here:
no version is served before checksum and canary passed. Evaluation has slots of its own, so it takes none from
rollouts. A failure of the engine is reported as a failure, never as a response.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

import msgspec

from offbeat.backends.messages import (
    AbortSamples,
    AnswerHeldOut,
    Beat,
    ContinueSamples,
    HeldOutAnswers,
    LaneHello,
    LaneUp,
    LoadWeights,
    PauseSamples,
    Sample,
    Sampled,
    SampleFailed,
    ToLane,
    UnloadWeights,
    WeightsLoaded,
)
from offbeat.backends.weights import check_canary, read_manifest, weights_file
from offbeat.backends.worker import Link, set_threads, work
from offbeat.errors import EngineError
from offbeat.eventtime.streams import stream_seed
from offbeat.ports import Completion, Generator, Request, Sampling
from offbeat.records import Trajectory
from offbeat.rollout.engine import Engine, NonFiniteLogits
from offbeat.settings import Settings, settings_from

BEAT_SECONDS = 0.5


class HeldOut:
    """An evaluation under way: which request answers which prompt in which mode."""

    def __init__(self, version: int, prompts: tuple[tuple[int, ...], ...], first_id: int) -> None:
        self.version = version
        count = len(prompts)
        self.waiting = [(first_id - i, prompts[i % count], i >= count) for i in range(2 * count)][::-1]
        self.place = {request_id: i for i, (request_id, _, _) in enumerate(reversed(self.waiting))}
        self.answers: list[tuple[int, ...] | None] = [None] * (2 * count)
        self.running = 0

    @property
    def done(self) -> bool:
        return all(answer is not None for answer in self.answers)


class LaneProcess:
    def __init__(self, link: Link, hello: LaneHello, settings: Settings, engine: Generator) -> None:
        self.link = link
        self.engine = engine
        self.run_directory = Path(hello.run_directory)
        self.origin = hello.origin
        self.seed = settings.run.seed
        self.rollout = settings.rollout
        self.sampling = Sampling(self.rollout.temperature, self.rollout.top_k, self.rollout.top_p)
        self.spare = evaluation_slots(settings)
        self.attempts: dict[int, int] = {}
        self.waiting: deque[Request] = deque()
        self.submitted: dict[int, float] = {}
        self.freed: dict[int, float] = {}
        self.paused = False
        self.held_out: list[HeldOut] = []
        self.next_held_out_id = -1
        self.decoded = 0
        self.beat_at = 0.0

    def now(self) -> float:
        return time.monotonic() - self.origin

    def serve(self) -> None:
        while True:
            busy = bool((self.attempts and not self.paused) or self.held_out)
            for message in self.link.poll(0 if busy else BEAT_SECONDS):
                self.take(message)
            self.feed()
            self.feed_held_out()
            if busy:
                self.decode()
            self.beat()

    # -- messages --------------------------------------------------------------------------------------------

    def take(self, message: ToLane) -> None:
        match message:
            case Sample():
                self.sample(message)
            case AbortSamples():
                self.engine.abort(message.trajectory_ids)
                for trajectory_id in message.trajectory_ids:
                    self.attempts.pop(trajectory_id, None)
                    self.submitted.pop(trajectory_id, None)
                gone = set(message.trajectory_ids)
                self.waiting = deque(request for request in self.waiting if request.request_id not in gone)
            case PauseSamples():
                self.paused = True
                self.engine.suspend(tuple(self.submitted))
            case ContinueSamples():
                self.paused = False
                self.engine.switch(tuple(self.submitted), message.version, message.keep_cache)
                self.waiting = deque(msgspec.structs.replace(r, version=message.version) for r in self.waiting)
            case LoadWeights():
                manifest = read_manifest(self.run_directory, message.version, message.digest)
                self.engine.load(message.version, weights_file(self.run_directory, message.version))
                check_canary(manifest, lambda p, r: self.engine.score(message.version, p, r))
                self.link.send(WeightsLoaded(message.version, manifest.digest))
            case UnloadWeights():
                self.engine.unload(message.version)
            case AnswerHeldOut():
                held_out = HeldOut(message.version, message.prompts, self.next_held_out_id)
                self.next_held_out_id -= 2 * len(message.prompts)
                self.held_out.append(held_out)

    def sample(self, message: Sample) -> None:
        for trajectory_id, attempt in zip(message.trajectory_ids, message.attempts, strict=True):
            request = Request(
                request_id=trajectory_id,
                version=message.version,
                prompt_ids=message.prompt_ids,
                seed=stream_seed(self.seed, "trajectory", trajectory_id),
                max_new_tokens=self.rollout.max_new_tokens,
                sampling=self.sampling,
            )
            self.attempts[trajectory_id] = attempt
            self.waiting.append(request)

    def feed(self) -> None:
        """Keep the rollout slots filled, and no more than these: the engine's other rows are for held-out prompts."""
        while self.waiting and not self.paused and len(self.submitted) < self.rollout.slots:
            request = self.waiting.popleft()
            try:
                self.engine.submit(request)
            except EngineError as error:
                attempt = self.attempts.pop(request.request_id)
                self.link.send(SampleFailed(request.request_id, attempt, str(error)))
                continue
            self.submitted[request.request_id] = self.now()

    # -- decoding --------------------------------------------------------------------------------------------

    def feed_held_out(self) -> None:
        """Keep the spare slots filled with the oldest evaluation's requests."""
        if not self.held_out:
            return
        held_out = self.held_out[0]
        while held_out.waiting and held_out.running < self.spare:
            request_id, prompt_ids, sampled = held_out.waiting.pop()
            self.engine.submit(
                Request(
                    request_id=request_id,
                    version=held_out.version,
                    prompt_ids=prompt_ids,
                    seed=stream_seed(self.seed, "held-out", held_out.place[request_id]),
                    max_new_tokens=self.rollout.max_new_tokens,
                    sampling=Sampling(1.0 if sampled else 0.0),
                )
            )
            held_out.running += 1

    def decode(self) -> None:
        try:
            completions = self.engine.step()
        except NonFiniteLogits as error:
            self.failed(error)
            return
        now = self.now()
        for completion in completions:
            self.decoded += len(completion.token_ids)
            if completion.request_id < 0:
                self.answered(completion)
            else:
                self.sampled(completion, now)
            self.freed[completion.slot] = now

    def failed(self, error: NonFiniteLogits) -> None:
        """The engine dropped these requests; a held-out answer among them is a failure of the lane."""
        if any(request_id < 0 for request_id in error.request_ids):
            raise error
        for trajectory_id in error.request_ids:
            self.submitted.pop(trajectory_id, None)
            self.link.send(SampleFailed(trajectory_id, self.attempts.pop(trajectory_id), str(error)))

    def sampled(self, done: Completion, now: float) -> None:
        """A freed slot is refilled at once, so a response began when it was submitted or its slot was freed."""
        attempt = self.attempts.pop(done.request_id)
        started = max(self.submitted.pop(done.request_id), self.freed.get(done.slot, 0.0))
        trajectory = Trajectory(done.request_id, attempt, done.spans, done.finish_reason)
        self.link.send(Sampled(trajectory, done.slot, started, now))

    def answered(self, done: Completion) -> None:
        held_out = self.held_out[0]
        held_out.running -= 1
        held_out.answers[held_out.place[done.request_id]] = done.token_ids
        if held_out.done:
            answers = [answer or () for answer in held_out.answers]
            half = len(answers) // 2
            self.link.send(HeldOutAnswers(held_out.version, tuple(answers[:half]), tuple(answers[half:])))
            self.held_out.pop(0)

    def beat(self) -> None:
        now = self.now()
        if now - self.beat_at < BEAT_SECONDS:
            return
        self.beat_at = now
        tokens = self.engine.decoded()
        mine = {request.request_id: 0 for request in self.waiting}
        mine |= {request_id: count for request_id, count in tokens.items() if request_id >= 0}
        running = sum(count > 0 for count in mine.values())
        total = self.decoded + sum(tokens.values())
        self.link.send(Beat(tuple(mine), tuple(mine.values()), running, total))


def evaluation_slots(settings: Settings) -> int:
    """Engine rows beyond the rollout slots, used by held-out evaluation only."""
    return max(1, settings.rollout.slots // 4)


def main(link: Link) -> None:
    hello = link.next()
    assert isinstance(hello, LaneHello)
    settings = settings_from(hello.settings)
    set_threads(settings.run.threads)
    slots = settings.rollout.slots
    engine = Engine(
        Path(hello.run_directory) / "policy",
        slots=slots + evaluation_slots(settings),
        context=settings.rollout.context,
    )
    link.send(LaneUp(slots))
    LaneProcess(link, hello, settings, engine).serve()


if __name__ == "__main__":
    work(main, ToLane)
