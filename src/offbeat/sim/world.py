"""The simulated world: what commands lead to, and when, on a virtual clock. Loop and scheduler are a live run's.

Every event that comes out is an answer to a command (or a fault), `costs` seconds after it; lanes decode in closed
form (`lane`), so the heap holds one entry a lane, not one a token. *C1 is asked for*: a dispatch to a lane without the
version is an InvariantError here as it would be an error of the engine in a live run. The same cluster, schedule
and seed give the same events for ever. This file decides nothing about who runs when.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

from offbeat import events as e
from offbeat.errors import InvariantError
from offbeat.eventtime.clock import VirtualClock
from offbeat.eventtime.heap import EventHeap
from offbeat.eventtime.streams import stream_seed
from offbeat.sim import said
from offbeat.sim.cluster import Cluster
from offbeat.sim.costs import Deliveries
from offbeat.sim.lane import Response, SimLane
from offbeat.sim.learner import Make, SimLearner
from offbeat.sim.lengths import Lengths


class SimWorld:
    """World (ports.World) of a cluster under one schedule. `moved_bytes` are keys and values that changed lanes."""

    def __init__(self, cluster: Cluster, schedule: str) -> None:
        self.cluster = cluster
        self.clock = VirtualClock()
        self.group_size = cluster.schedule.group_size
        self.lengths = Lengths(cluster.lengths, self.group_size, cluster.run.seed)
        self.slots = cluster.lane_slots(schedule)
        self.lanes = [self._lane(i) for i in range(cluster.lanes(schedule))]
        self.heap: EventHeap[Make | tuple[SimLane, int]] = EventHeap()
        self.pending: deque[e.Event] = deque()
        self.learner = SimLearner(cluster, schedule, self.clock, self.at, self.pending.append)
        self.deliveries: dict[int, Deliveries] = {}
        self.moved_bytes = 0.0
        self.recomputed_tokens = 0.0
        self.events = 0
        self._departed: dict[tuple[int, int], Response] = {}
        self.pending.append(e.Opened(0))

    def _lane(self, index: int) -> SimLane:
        c = self.cluster
        room = inf if c.cache_tokens is None else float(c.cache_tokens)
        speed = c.faults.slow_factor if self._stream("speed", index).random() < c.faults.slow_share else 1.0
        return SimLane(index, self.slots, c.decode, c.prefill, c.lane_accelerators, room, speed)

    def _stream(self, *name: str | int) -> random.Random:
        return random.Random(stream_seed(self.cluster.run.seed, *name))

    # -- World -----------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.clock.now

    def next_event(self) -> e.Event:
        """The next event. Raises InvariantError where nothing can happen any more: the run would wait for ever."""
        self.events += 1
        pending, heap, clock = self.pending, self.heap, self.clock
        while not pending:
            if not heap:
                raise InvariantError(f"the simulation stands still at {clock.now:.1f} s: nothing is under way")
            at, what = heap.pop()
            if type(what) is tuple:
                lane, plan = what
                if lane.plan == plan:
                    if at > clock.now:
                        clock.now = at
                    self._lane_moment(lane)
                continue
            clock.advance(at)
            event = what()  # type: ignore[operator]
            if event is not None:
                pending.append(event)
        return pending.popleft()

    def perform(self, command: e.Command) -> None:
        self._deeds[type(command)](self, command)

    def busy_slot_seconds(self) -> float:
        """Slot-seconds so far in which a response was decoded or computed again."""
        for lane in self.lanes:
            lane.advance(self.now)
        return sum(lane.busy_seconds for lane in self.lanes)

    # -- lanes -----------------------------------------------------------------------------------------------

    def at(self, at: float, make: Make) -> None:
        """Let something happen at a moment, now at the earliest."""
        self.heap.push(max(at, self.clock.now), make)

    def _expect(self, lane: SimLane) -> None:
        """Something changed on a lane: its next moment is another."""
        lane.plan += 1
        moment = lane.next_moment()
        if moment < inf:
            self.heap.push(moment if moment > self.clock.now else self.clock.now, (lane, lane.plan))

    def _lane_moment(self, lane: SimLane) -> None:
        """Responses end, or go to their environment, or room runs out; freed slots are filled in the same moment."""
        now = self.clock.now
        lane.advance(now)
        for response in lane.ended():
            if response.turns:
                self._visit_environment(lane, response)
            else:
                self.pending.append(self._finished(lane, response, now))
        if lane.cache_tokens < inf and lane.relieve():
            self.pending.append(said.pressure(lane))
        lane.fill(now)
        self._expect(lane)

    def _finished(self, lane: SimLane, response: Response, now: float) -> e.Finished:
        lane.decoded += response.tokens
        self.learner.counts(response.group_id, response.tokens)
        return said.finished(lane, response, self.cluster.lengths.cap, now)

    def _visit_environment(self, lane: SimLane, response: Response) -> None:
        assert response.turns is not None
        wait, tokens = response.turns.popleft()
        response.left = float(tokens)
        response.later -= tokens
        lane.away[response.trajectory_id] = response
        life, plan = lane.life, len(response.turns)

        def returns() -> None:
            here = lane.life == life and lane.away.get(response.trajectory_id) is response
            if here and response.turns is not None and len(response.turns) == plan:
                lane.advance(self.clock.now)
                lane.back(response)
                lane.fill(self.clock.now)
                self._expect(lane)

        self.at(self.now + wait, returns)

    def _start_lane(self, command: e.StartLane) -> None:
        lane, faults = self.lanes[command.lane], self.cluster.faults
        life = lane.restart(self.now)
        wait = faults.return_seconds if command.reason else 0.0

        def ready() -> e.Event | None:
            if lane.life != life:
                return None
            lane.up = True
            return e.LaneReady(lane.index, lane.slots)

        self.at(self.now + wait, ready)
        if faults.lane_hours is not None:

            def die() -> e.Event | None:
                if lane.life != life:
                    return None
                lane.life += 1
                lane.plan += 1
                return e.LaneLost(lane.index, "simulated failure")

            lived = self._stream("lane", lane.index, life).expovariate(1 / (3600 * faults.lane_hours))
            self.at(self.now + wait + lived, die)

    def _load(self, command: e.LoadVersion) -> None:
        lane, version = self.lanes[command.lane], command.version
        life = lane.life
        deliveries = self.deliveries.get(version)
        if deliveries is None:
            deliveries = self.deliveries[version] = self.cluster.publish.deliveries()

        def loaded() -> e.Event | None:
            if lane.life != life:
                return None
            lane.loaded.add(version)
            return e.VersionLoaded(lane.index, version)

        self.at(deliveries.arrival(self.now, self.learner.published[version]), loaded)

    def _unload(self, command: e.UnloadVersion) -> None:
        self.lanes[command.lane].loaded.discard(command.version)

    def _generate(self, command: e.Generate) -> None:
        lane = self.lanes[command.lane]
        if command.version not in lane.loaded:
            raise InvariantError(f"C1: lane {command.lane} was given work of version {command.version}, which it lacks")
        now, prompt, version, first = self.now, self.cluster.lengths.prompt_tokens, command.version, True
        tokens = self.lengths.of(command.prompt_id, version)
        lane.advance(now)
        for trajectory_id, attempt in zip(command.trajectory_ids, command.attempts, strict=True):
            length = tokens[trajectory_id % self.group_size]
            response = Response(
                trajectory_id, attempt, command.group_id, version, length, prompt, prompt if first else 0
            )
            first = False
            if self.cluster.tools.turns > 1:
                said.in_turns(response, self.cluster.tools, self._stream("environment", trajectory_id))
            lane.queue.append(response)
        lane.fill(now)
        self._expect(lane)

    def _abort(self, command: e.Abort) -> None:
        lane = self.lanes[command.lane]
        lane.advance(self.now)
        for trajectory_id in command.trajectory_ids:
            lane.give_up(trajectory_id)
        lane.fill(self.now)
        self._expect(lane)

    def _move(self, command: e.Move) -> None:
        """What the lane still has leaves at once; with keys and values it is away until these have been sent."""
        lane, life = self.lanes[command.lane], self.lanes[command.lane].life
        transfer = self.cluster.transfer
        now = self.now
        lane.advance(now)
        found = [r for i in command.trajectory_ids if (r := lane.give_up(i)) is not None]
        lane.fill(now)
        self._expect(lane)
        tokens = sum(r.decoded + r.prompt for r in found if r.started >= 0)
        if command.keep_cache:
            self.moved_bytes += transfer.bytes(tokens)
        wait = transfer.seconds(tokens) if command.keep_cache else transfer.setup_seconds

        def departed() -> e.Event | None:
            if lane.life != life:
                return None
            for response in found:
                if not command.keep_cache and response.started >= 0:
                    response.prefill = int(response.prompt + response.decoded)
                    self.recomputed_tokens += response.prefill
            self._departed = {(r.trajectory_id, r.attempt): r for r in found}
            return said.departed(lane, found, now)

        self.at(now + wait, departed)

    def _attach(self, command: e.Attach) -> None:
        lane = self.lanes[command.lane]
        lane.advance(self.now)
        for key in reversed(list(zip(command.trajectory_ids, command.attempts, strict=True))):
            response = self._departed.pop(key)
            if response.version not in lane.loaded:
                raise InvariantError(f"C1: lane {command.lane} was given a response of version {response.version}")
            lane.queue.appendleft(response)
        lane.fill(self.now)
        self._expect(lane)

    def _pause(self, command: e.Pause) -> None:
        lane = self.lanes[command.lane]
        lane.advance(self.now)
        lane.pause()
        lane.plan += 1

    def _continue(self, command: e.Continue) -> None:
        lane = self.lanes[command.lane]
        if command.version not in lane.loaded:
            raise InvariantError(f"lane {command.lane} was to continue under version {command.version}, which it lacks")
        lane.advance(self.now)
        lane.go_on(command.version, command.keep_cache, self.now)
        lane.fill(self.now)
        self._expect(lane)

    # -- the rest --------------------------------------------------------------------------------------------

    def _evaluate(self, command: e.Evaluate) -> None:
        """Evaluations cost nothing here: the scheduler asks for one before and one after the run."""
        self.pending.append(e.Evaluated(command.version, 0, 0.0, 0.0))

    def _retire(self, command: e.Retire) -> None:
        self.deliveries.pop(command.version, None)
        self.learner.published.pop(command.version, None)

    def _given_up(self, command: e.Quarantine | e.Evict) -> None:
        self.learner.group_tokens.pop(command.group_id, None)

    def _nothing(self, command: e.Command) -> None:
        """The end of the run needs no deed."""

    _deeds: dict[type, Callable[[SimWorld, Any], None]] = {
        e.StartLane: _start_lane,
        e.StartLearner: lambda world, command: world.learner.start(command),
        e.LoadVersion: _load,
        e.UnloadVersion: _unload,
        e.Generate: _generate,
        e.Abort: _abort,
        e.Move: _move,
        e.Attach: _attach,
        e.Pause: _pause,
        e.Continue: _continue,
        e.Score: lambda world, command: world.learner.score(command),
        e.Train: lambda world, command: world.learner.train(command),
        e.Evaluate: _evaluate,
        e.Retire: _retire,
        e.Quarantine: _given_up,
        e.Evict: _given_up,
        e.Stop: _nothing,
    }
