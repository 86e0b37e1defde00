"""A simulated lane: decoding in closed form. It advances only when something happens to it, never token by token.

All running responses gain one token a step, so a lane has one token clock, `clock`: the decode steps it has done. A
response that has n tokens to go ends when the clock shows n more, whatever happens to the speed of the clock meanwhile.
While the same responses run, the clock moves by the formulas of `costs.seconds_for` and `steps_within`.
This file knows no versions' worth, no events and no other lane.
"""

from __future__ import annotations

import heapq
from collections import deque
from math import inf

from offbeat.sim.costs import Decode, Prefill, seconds_for, steps_within

DONE = 1e-6
"""Tokens short of its end at which a response has ended: rounding."""


class Response:
    """An attempt at a trajectory: `tokens` in all, `left` to go when it last stood still; `end` is where the lane's
    clock ends its present stretch while it runs. `prefill` tokens are to be computed before it can decode.
    `turns` are stretches still to come after the present one, each after a wait of its own (seconds, tokens).
    """

    __slots__ = (
        "attempt", "end", "group_id", "later", "left", "prefill", "prompt", "ready_at", "spans", "started",
        "tokens", "trajectory_id", "turns", "version", "versions_from",
    )  # fmt: skip

    def __init__(
        self, trajectory_id: int, attempt: int, group_id: int, version: int, tokens: int, prompt: int, prefill: int
    ) -> None:
        self.trajectory_id = trajectory_id
        self.attempt = attempt
        self.group_id = group_id
        self.version = version
        self.versions_from = version
        self.spans = 1
        self.tokens = tokens
        self.left = float(tokens)
        self.later = 0.0
        self.end = 0.0
        self.started = -1.0
        self.ready_at = 0.0
        self.prompt = prompt
        self.prefill = prefill
        self.turns: deque[tuple[float, int]] | None = None

    @property
    def decoded(self) -> float:
        """Tokens it had when it last stood still."""
        return self.tokens - self.later - self.left


class SimLane:
    def __init__(
        self, index: int, slots: int, decode: Decode, prefill: Prefill, accelerators: int,
        cache_tokens: float = inf, speed: float = 1.0,
    ) -> None:  # fmt: skip
        self.index = index
        self.slots = slots
        self.cache_tokens = cache_tokens
        self._floor = speed * decode.floor_seconds
        self._each = speed * decode.per_sequence_seconds
        self._knee = decode.knee
        self.slope = speed * decode.per_context_token_seconds
        self.prefill_seconds = speed * prefill.seconds(1, accelerators)
        self.life = 0
        self.busy_seconds = 0.0
        self.decoded = 0
        self.up = False
        self.plan = 0
        self._empty(0.0)

    def _empty(self, now: float) -> None:
        self.loaded: set[int] = set()
        self.running: dict[int, Response] = {}
        self.away: dict[int, Response] = {}
        self.parked: list[Response] = []
        self.queue: deque[Response] = deque()
        self._order: list[tuple[float, int, int, Response]] = []
        self.clock = 0.0
        self.context = 0.0
        self.at = now
        self.stalled_until = 0.0
        self.base = 0.0
        self.paused = False

    def restart(self, now: float) -> int:
        """All it held is gone; the number of its new life."""
        self.advance(now)
        self._empty(now)
        self.life += 1
        self.plan += 1
        self.decoded = 0
        self.up = False
        return self.life

    # -- time ------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Decode up to `now`."""
        begin, self.at = self.at, now
        running = len(self.running)
        if now <= begin or not running:
            return
        self.busy_seconds += (now - begin) * running
        if self.paused:
            return
        if self.stalled_until > begin:
            begin = self.stalled_until
            if begin >= now:
                return
        if self.slope:
            steps = steps_within(now - begin, self.base, self.context, running, self.slope)
        else:
            steps = (now - begin) / self.base
        self.clock += steps
        self.context += steps * running

    def next_moment(self) -> float:
        """When the next response ends a stretch, or room for keys and values runs out, if nothing else happens."""
        running = len(self.running)
        if not running or self.paused:
            return inf
        order = self._order
        while True:
            end, key, _, response = order[0]
            if response.end == end and self.running.get(key) is response:
                break
            heapq.heappop(order)
        steps = end - self.clock
        if steps < 0.0:
            steps = 0.0
        if self.cache_tokens < inf and running > 1:
            steps = min(steps, max(0.0, (self.cache_tokens - self.context) / running))
        after = self.stalled_until if self.stalled_until > self.at else self.at
        if self.slope:
            return after + seconds_for(steps, self.base, self.context, running, self.slope)
        return after + steps * self.base

    def ended(self) -> list[Response]:
        """Take out the responses whose stretch is over, now that the lane was advanced to its next moment."""
        found = []
        order, running = self._order, self.running
        while order:
            end, key, _, response = order[0]
            current = response.end == end and running.get(key) is response
            if current and end > self.clock + DONE:
                break
            heapq.heappop(order)
            if current:
                if end > self.clock:
                    self.clock = end
                del running[key]
                response.left = 0.0
                self.context -= response.prompt + response.tokens - response.later
                found.append(response)
        if found:
            self._changed()
        return found

    def _changed(self) -> None:
        running = len(self.running)
        self.base = self._floor + self._each * max(0.0, running - self._knee)
        if not running:
            self.context = 0.0

    def _forget_context(self, response: Response) -> None:
        self.context = max(0.0, self.context - response.prompt - response.decoded)

    # -- what it is given and gives up -----------------------------------------------------------------------

    def fill(self, now: float) -> None:
        """Let what waits run: what is parked first, then the queue, while there are slots and room. Advanced to now."""
        if self.paused or not (self.queue or self.parked):
            return
        before = len(self.running)
        while self.parked and self._has_room(self.parked[0]):
            self._run(self.parked.pop(0), now)
        queue = self.queue
        free = self.slots - len(self.running) - len(self.away) - len(self.parked)
        while queue and free > 0 and not self.parked and self._has_room(queue[0]):
            response = queue.popleft()
            if response.started < 0:
                response.started = now
            self._run(response, now)
            free -= 1
        if len(self.running) != before:
            self._changed()

    def _has_room(self, response: Response) -> bool:
        """Room for keys and values of what it has, with a little to go on."""
        if self.cache_tokens == inf or not self.running:
            return True
        ahead = 0.01 * self.cache_tokens
        return self.context + response.prompt + response.decoded + ahead <= self.cache_tokens

    def _run(self, response: Response, now: float) -> None:
        if response.prefill:
            self.stall(now, response.prefill)
            response.prefill = 0
        response.end = self.clock + response.left
        self.running[response.trajectory_id] = response
        heapq.heappush(self._order, (response.end, response.trajectory_id, response.attempt, response))
        self.context += response.prompt + response.decoded

    def stall(self, now: float, tokens: float) -> None:
        """Compute keys and values of so many tokens before decoding goes on."""
        self.stalled_until = max(self.stalled_until, now) + tokens * self.prefill_seconds

    def back(self, response: Response) -> None:
        """A response that waited for its environment goes on in its slot."""
        del self.away[response.trajectory_id]
        self.parked.append(response)

    def relieve(self) -> bool:
        """Park the youngest while there is no room for what comes next; was any parked?"""
        parked = False
        while len(self.running) > 1 and self.context >= self.cache_tokens - DONE:
            youngest = max(self.running.values(), key=lambda r: (r.started, r.trajectory_id))
            self._stop(youngest)
            self.parked.append(youngest)
            parked = True
        if parked:
            self._changed()
        return parked

    def _stop(self, response: Response) -> None:
        del self.running[response.trajectory_id]
        response.left = max(0.0, response.end - self.clock)
        response.end = inf
        self._forget_context(response)

    def give_up(self, trajectory_id: int) -> Response | None:
        """Take a response out, whatever it does; None where it is not here. Advanced to now."""
        response = self.running.get(trajectory_id)
        if response is not None:
            self._stop(response)
            self._changed()
            return response
        response = self.away.pop(trajectory_id, None)
        if response is not None:
            return response
        for place in (self.parked, self.queue):
            for held in place:
                if held.trajectory_id == trajectory_id:
                    place.remove(held)
                    return held
        return None

    def pause(self) -> None:
        self.paused = True

    def go_on(self, version: int, keep_cache: bool, now: float) -> None:
        """All that is held goes on under `version`; without its cache after computing it again. Advanced to now."""
        begun = [*self.running.values(), *self.parked, *self.away.values()]
        for response in begun:
            if response.version != version:
                if self.decoded_by(response) >= 1:
                    response.spans += 1
                else:
                    response.versions_from = version
                response.version = version
                if not keep_cache and response.trajectory_id in self.running:
                    self.stall(now, response.prompt + self.decoded_by(response))
                elif not keep_cache:
                    response.prefill = int(response.prompt + response.decoded)
        for response in self.queue:
            if response.started < 0:
                response.versions_from = version
            response.version = version
        self.paused = False

    def decoded_by(self, response: Response) -> float:
        """Tokens of a response by now."""
        if response.trajectory_id in self.running:
            return response.tokens - response.later - (response.end - self.clock)
        return response.decoded

    def uses(self, version: int) -> bool:
        return any(
            r.version == version
            for place in (self.running.values(), self.away.values(), self.parked, self.queue)
            for r in place
        )

    @property
    def held(self) -> int:
        return len(self.running) + len(self.away) + len(self.parked) + len(self.queue)
