"""A world without models or clocks: random service times on a heap, and faults on request.

It keeps the engine's side of the bargain (a lane decodes what it holds under a loaded version, in slots, in
order) and asserts the scheduler's side: C1 at every dispatch. Everything random comes from one seed.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from offbeat import events as e
from offbeat.records import StepReport

EMPTY_REPORT = StepReport(
    iteration=0,
    trajectories=0,
    tokens=0,
    prompt_tokens=0,
    reward_mean=0.0,
    reward_std=0.0,
    zero_advantage_groups=0,
    loss=0.0,
    gradient_norm=0.0,
    ratio_mean=1.0,
    ratio_max=1.0,
    clip_share=0.0,
    policy_lag_kl=0.0,
    entropy=0.0,
    learning_rate=0.0,
    skipped_updates=0,
    consecutive_skips=0,
    train_seconds=0.0,
    publish_seconds=0.0,
)


class _Running:
    """A response under way: `left` tokens at `since`, one a second; `plan` tells its scheduled end from older ones."""

    def __init__(self, attempt: int, version: int, tokens: int, now: float) -> None:
        self.attempt = attempt
        self.versions = [version]
        self.tokens = tokens
        self.started = self.since = now
        self.left = float(tokens)
        self.plan = 0


class _Lane:
    def __init__(self, slots: int) -> None:
        self.life = 0
        self.slots = slots
        self.loaded: set[int] = set()
        self.queue: deque[tuple[int, int, int]] = deque()
        self.running: dict[int, _Running] = {}
        self.decoded = 0
        self.paused = False


class FakeWorld:
    """Random response lengths, `learn` seconds a step, faults with the given probabilities per second.

    `length(rng)` gives a response's tokens (one token is one second); `faults` maps "lane" and "learner" to a
    rate of deaths per second and "score" to a probability of a failing reward.
    """

    def __init__(
        self,
        seed: int,
        lanes: int,
        slots: int,
        length: Callable[[random.Random], float] | None = None,
        learn: float = 5.0,
        faults: dict[str, float] | None = None,
        start: float = 0.0,
        session: int = 0,
        version: int = 0,
    ) -> None:
        self.rng = random.Random(seed)
        self.lanes = [_Lane(slots) for _ in range(lanes)]
        self.length = length or (lambda rng: min(200.0, rng.paretovariate(1.2)))
        self.learn = learn
        self.faults = faults or {}
        self._now = start
        self._heap: list[tuple[float, int, Callable[[], e.Event | None]]] = []
        self._sequence = 0
        self._learner_life = 0
        self.version = version
        self.events = 0
        self._after(0.0, lambda: e.Opened(session))

    # -- World -----------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self._now

    def next_event(self) -> e.Event:
        while True:
            if not self._heap:
                self._now += 1.0
                return e.Tick()
            at, _, make = heapq.heappop(self._heap)
            if at > self._now + 30.0:
                self._now += 30.0
                self._push(at, make)
                return e.Tick()
            self._now = max(self._now, at)
            event = make()
            if event is not None:
                self.events += 1
                return event

    def perform(self, command: e.Command) -> None:
        match command:
            case e.StartLane():
                self._start_lane(command.lane)
            case e.StartLearner():
                self._start_learner(command.version)
            case e.LoadVersion():
                self._load(command.lane, command.version)
            case e.UnloadVersion():
                lane = self.lanes[command.lane]
                in_use = {run.versions[-1] for run in lane.running.values()} | {v for _, _, v in lane.queue}
                assert command.version not in in_use, "C1: unloaded while in use"
                lane.loaded.remove(command.version)
            case e.Generate():
                self._generate(command)
            case e.Abort():
                self._abort(command.lane, command.trajectory_ids)
            case e.Pause():
                self._pause(command.lane)
            case e.Continue():
                self._continue(command)
            case e.Score():
                self._score(command)
            case e.Train():
                self._train(command)
            case e.Evaluate():
                self._evaluate(command)
            case _:
                pass

    # -- service times and faults ----------------------------------------------------------------------------

    def _push(self, at: float, make: Callable[[], e.Event | None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (at, self._sequence, make))

    def _after(self, delay: float, make: Callable[[], e.Event | None]) -> None:
        self._push(self._now + delay, make)

    def _start_lane(self, index: int) -> None:
        lane = self.lanes[index]
        lane.life += 1
        life = lane.life
        lane.loaded, lane.running, lane.decoded, lane.paused = set(), {}, 0, False
        lane.queue.clear()
        self._after(1.0, lambda: e.LaneReady(index, lane.slots) if lane.life == life else None)
        rate = self.faults.get("lane", 0.0)
        if rate:

            def die() -> e.Event | None:
                if lane.life != life:
                    return None
                lane.life += 1
                return e.LaneLost(index, "killed by the test")

            self._after(self.rng.expovariate(rate), die)

    def _start_learner(self, version: int) -> None:
        self._learner_life += 1
        life = self._learner_life
        self.version = version
        self._after(2.0, lambda: e.LearnerReady(version) if self._learner_life == life else None)
        rate = self.faults.get("learner", 0.0)
        if rate:

            def die() -> e.Event | None:
                if self._learner_life != life:
                    return None
                self._learner_life += 1
                return e.LearnerLost("killed by the test")

            self._after(self.rng.expovariate(rate), die)

    def _load(self, index: int, version: int) -> None:
        lane, life = self.lanes[index], self.lanes[index].life
        assert version <= self.version, "a version was loaded before it was published"

        def loaded() -> e.Event | None:
            if lane.life != life:
                return None
            lane.loaded.add(version)
            return e.VersionLoaded(index, version)

        self._after(self.rng.uniform(0.1, 2.0), loaded)

    def _generate(self, command: e.Generate) -> None:
        lane = self.lanes[command.lane]
        assert command.version in lane.loaded, "C1: dispatched to a lane without the version"
        for trajectory_id, attempt in zip(command.trajectory_ids, command.attempts, strict=True):
            assert trajectory_id not in lane.running, "a trajectory was dispatched twice"
            lane.queue.append((trajectory_id, attempt, command.version))
        self._fill(command.lane)

    def _fill(self, index: int) -> None:
        lane = self.lanes[index]
        while lane.queue and len(lane.running) < lane.slots and not lane.paused:
            trajectory_id, attempt, version = lane.queue.popleft()
            tokens = max(1, int(self.length(self.rng)))
            lane.running[trajectory_id] = _Running(attempt, version, tokens, self._now)
            self._decode(index, trajectory_id)

    def _decode(self, index: int, trajectory_id: int) -> None:
        """Schedule the end of a response, and a heartbeat every 20 tokens until then."""
        lane = self.lanes[index]
        run = lane.running[trajectory_id]
        run.plan += 1
        run.since = self._now
        life, plan = lane.life, run.plan

        def is_off() -> bool:
            return lane.life != life or lane.running.get(trajectory_id) is not run or run.plan != plan

        def finish() -> e.Event | None:
            if is_off():
                return None
            del lane.running[trajectory_id]
            lane.decoded += run.tokens
            self._fill(index)
            return e.Finished(
                trajectory_id, run.attempt, index, 0, run.versions[0], run.tokens, "stop", run.started, self._now,
                len(run.versions),
            )  # fmt: skip

        def beat(decoded: int) -> e.Event | None:
            if is_off():
                return None
            lane.decoded += 1
            return e.Progress(index, (trajectory_id,), (decoded,), len(lane.running), lane.decoded)

        self._after(run.left, finish)
        for after in range(20, int(run.left), 20):
            self._after(float(after), partial(beat, int(run.tokens - run.left) + after))

    def _pause(self, index: int) -> None:
        lane = self.lanes[index]
        assert not lane.paused, "paused twice"
        lane.paused = True
        for run in lane.running.values():
            run.left -= self._now - run.since
            run.plan += 1

    def _continue(self, command: e.Continue) -> None:
        """Every response goes on under another version; after a re-prefill it takes a second longer."""
        lane = self.lanes[command.lane]
        assert command.version in lane.loaded, "continued under a version that is not loaded"
        lane.queue = deque((trajectory_id, attempt, command.version) for trajectory_id, attempt, _ in lane.queue)
        for trajectory_id, run in lane.running.items():
            if run.versions[-1] != command.version:
                run.versions.append(command.version)
            if lane.paused:
                run.left += not command.keep_cache
                self._decode(command.lane, trajectory_id)
        lane.paused = False
        self._fill(command.lane)

    def _abort(self, index: int, trajectory_ids: Sequence[int]) -> None:
        lane = self.lanes[index]
        for trajectory_id in trajectory_ids:
            lane.running.pop(trajectory_id, None)
        lane.queue = deque(item for item in lane.queue if item[0] not in trajectory_ids)
        self._fill(index)

    def _score(self, command: e.Score) -> None:
        failing = self.rng.random() < self.faults.get("score", 0.0)
        key = (command.trajectory_id, command.attempt)
        self._after(0.05, lambda: e.ScoreFailed(*key, "raised in the test") if failing else e.Scored(*key, 1.0))

    def _train(self, command: e.Train) -> None:
        life, started = self._learner_life, self._now
        assert command.iteration == self.version, "a batch for another version than the learner's"

        def trained() -> e.Event | None:
            if self._learner_life != life:
                return None
            self.version = command.iteration + 1
            return e.Trained(self.version, "", EMPTY_REPORT, started, self._now)

        self._after(self.learn * self.rng.uniform(0.5, 1.5), trained)

    def _evaluate(self, command: e.Evaluate) -> None:
        lane, life = self.lanes[command.lane], self.lanes[command.lane].life
        assert command.version in lane.loaded, "C1: evaluated on a lane without the version"
        self._after(3.0, lambda: e.Evaluated(command.version, 8, 0.5, 0.5) if lane.life == life else None)
