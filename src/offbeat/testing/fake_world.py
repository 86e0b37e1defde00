"""A world without models or clocks: random service times on a heap, and faults on request.

It keeps the engine's side of the bargain (a lane decodes what it holds under a loaded version, in slots, in
order) and asserts the scheduler's side: C1 at every dispatch. Everything random comes from one seed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from functools import partial

from offbeat import events as e
from offbeat.testing.empty_report import EMPTY_REPORT
from offbeat.testing.fake_lane import FakeLane, Queued, Response


class FakeWorld:
    """Random response lengths, `learn` seconds a step, faults with the given probabilities per second.

    `length(rng)` gives a response's tokens (one token is one second); `faults` maps "lane" and "learner" to a
    rate of deaths per second, "leave" to one of lanes that go with their machine, "score" to a probability of a failing
    reward, and "absence" to the most seconds that a lane waits for room.
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
        cache_tokens: float = math.inf,
    ) -> None:
        self.rng = random.Random(seed)
        self.lanes = [FakeLane(slots, cache_tokens) for _ in range(lanes)]
        self.length = length or (lambda rng: min(200.0, rng.paretovariate(1.2)))
        self.learn = learn
        self.faults = faults or {}
        self._now = start
        self._heap: list[tuple[float, int, Callable[[], e.Event | None]]] = []
        self._sequence = 0
        self._learner_life = 0
        self.version = version
        self._departed: dict[tuple[int, int], Queued] = {}
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
                assert not lane.uses(command.version), "C1: unloaded while in use"
                lane.loaded.remove(command.version)
            case e.Generate():
                self._generate(command)
            case e.Abort():
                self._abort(command.lane, command.trajectory_ids)
            case e.Move():
                self._move(command)
            case e.Attach():
                self._attach(command)
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
        life = lane.restart()
        room = 1.0 + (self.rng.uniform(0.0, self.faults["absence"]) if "absence" in self.faults else 0.0)
        self._after(room, lambda: e.LaneReady(index, lane.slots) if lane.life == life else None)

        def end(left: bool) -> e.Event | None:
            if lane.life != life:
                return None
            lane.life += 1
            return e.LaneLost(index, "ended by the test", left=left)

        for fault in ("lane", "leave"):
            if rate := self.faults.get(fault, 0.0):
                self._after(room - 1.0 + self.rng.expovariate(rate), partial(end, fault == "leave"))

    def _start_learner(self, version: int) -> None:
        self._learner_life += 1
        life = self._learner_life
        self.version = version
        self._after(2.0, lambda: e.LearnerReady(version) if self._learner_life == life else None)
        if rate := self.faults.get("learner", 0.0):

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
            lane.queue.append(Queued(trajectory_id, attempt, command.version))
        self._fill(command.lane)

    def _fill(self, index: int) -> None:
        lane = self.lanes[index]
        while lane.queue and len(lane.running) < lane.slots and not lane.paused:
            item = lane.queue.popleft()
            tokens = max(1, int(self.length(self.rng))) if item.response is None else 0
            run = item.response or Response(item.attempt, item.version, tokens, self._now)
            run.started = self._now
            lane.running[item.trajectory_id] = run
            self._decode(index, item.trajectory_id)

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
            lane.forget(trajectory_id)
            lane.decoded += run.tokens
            self._fill(index)
            self._unpark(index)
            return e.Finished(
                trajectory_id, run.attempt, index, 0, run.versions[0], run.tokens, "stop", run.started, self._now,
                len(run.versions),
            )  # fmt: skip

        def beat(decoded: int) -> e.Event | None:
            if is_off():
                return None
            lane.decoded += 1
            lane.park(self._now)
            said = len(lane.running) - len(lane.parked), lane.decoded, tuple(lane.parked), lane.cached(self._now)
            return e.Progress(index, (trajectory_id,), (decoded,), *said)

        self._after(run.left, finish)
        for after in range(20, int(run.left), 20):
            self._after(float(after), partial(beat, run.decoded + after))

    def _unpark(self, index: int) -> None:
        while (trajectory_id := self.lanes[index].unpark(self._now)) is not None:
            self._decode(index, trajectory_id)

    def _move(self, command: e.Move) -> None:
        """The lane gives up at a moment of its own what it still has then."""
        assert command.lane != command.to, "moved to where it is"
        lane, life = self.lanes[command.lane], self.lanes[command.lane].life

        def departed() -> e.Event | None:
            if lane.life != life:
                return None
            found = [item for i in command.trajectory_ids if (item := lane.give_up(i, self._now))]
            self._departed = {(item.trajectory_id, item.attempt): item for item in found}
            self._fill(command.lane)
            self._unpark(command.lane)
            runs = [item.response for item in found]
            return e.Departed(
                lane=command.lane,
                trajectory_ids=tuple(item.trajectory_id for item in found),
                attempts=tuple(item.attempt for item in found),
                tokens=tuple(run.decoded if run else 0 for run in runs),
                slots=tuple(0 if run else -1 for run in runs),
                started=tuple(run.started if run else self._now for run in runs),
                ended=self._now,
            )

        self._after(self.rng.uniform(0.0, 3.0), departed)

    def _attach(self, command: e.Attach) -> None:
        lane = self.lanes[command.lane]
        for trajectory_id, attempt in zip(command.trajectory_ids, command.attempts, strict=True):
            item = self._departed.pop((trajectory_id, attempt))
            assert item.version in lane.loaded, "C1: attached to a lane without the version"
            assert trajectory_id not in lane.running, "a trajectory runs twice"
            lane.queue.appendleft(item)
        self._fill(command.lane)

    def _pause(self, index: int) -> None:
        lane = self.lanes[index]
        assert not lane.paused, "paused twice"
        lane.paused = True
        for run in lane.running.values():
            run.stand_still(self._now)

    def _continue(self, command: e.Continue) -> None:
        """Every response goes on under another version; after a re-prefill it takes a second longer."""
        lane = self.lanes[command.lane]
        assert command.version in lane.loaded, "continued under a version that it lacks"
        for item in lane.queue:
            item.version = command.version
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
            lane.forget(trajectory_id)
        self._fill(index)
        self._unpark(index)

    def _score(self, command: e.Score) -> None:
        failing = self.rng.random() < self.faults.get("score", 0.0)
        key = command.trajectory_id, command.attempt
        self._after(0.05, lambda: e.ScoreFailed(*key, "raised") if failing else e.Scored(*key, 1.0))

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
