"""What the fake world knows of a lane: what runs, what queues, what it holds loaded. It decides nothing."""

from __future__ import annotations

from collections import deque
from math import inf


class Response:
    """A response under way: `left` tokens at `since`, one a second; `plan` tells its scheduled end from older ones."""

    def __init__(self, attempt: int, version: int, tokens: int, now: float) -> None:
        self.attempt = attempt
        self.versions = [version]
        self.tokens = tokens
        self.started = self.since = now
        self.left = float(tokens)
        self.plan = 0

    def stand_still(self, now: float) -> None:
        """Nothing is decoded of it until it is scheduled again."""
        self.left -= now - self.since
        self.since = now
        self.plan += 1

    @property
    def decoded(self) -> int:
        """Tokens when it last stood still or was scheduled."""
        return int(self.tokens - self.left)

    def decoded_at(self, now: float) -> int:
        """Tokens by now, of one that does not stand still."""
        return int(self.tokens - self.left + now - self.since)


class Queued:
    """A request that waits for a slot: a new one, or a response that came from another lane."""

    def __init__(self, trajectory_id: int, attempt: int, version: int, response: Response | None = None) -> None:
        self.trajectory_id = trajectory_id
        self.attempt = attempt
        self.version = version
        self.response = response


class FakeLane:
    """`cache_tokens` bounds the tokens of what runs; the youngest are parked beyond that, and keep their slot."""

    def __init__(self, slots: int, cache_tokens: float = inf) -> None:
        self.life = 0
        self.slots = slots
        self.cache_tokens = cache_tokens
        self.parked: list[int] = []
        self.loaded: set[int] = set()
        self.queue: deque[Queued] = deque()
        self.running: dict[int, Response] = {}
        self.decoded = 0
        self.paused = False

    def restart(self) -> int:
        """All is gone; the number of the new life."""
        self.life += 1
        self.loaded, self.running, self.decoded, self.paused = set(), {}, 0, False
        self.queue.clear()
        self.parked.clear()
        return self.life

    def uses(self, version: int) -> bool:
        return any(run.versions[-1] == version for run in self.running.values()) or any(
            item.version == version for item in self.queue
        )

    def cached(self, now: float) -> int:
        """Tokens of all that runs and is not parked."""
        return sum(run.decoded_at(now) for i, run in self.running.items() if i not in self.parked)

    def park(self, now: float) -> None:
        """Let the youngest stand still while there is too little room; the last one goes on."""
        going = sorted((i for i in self.running if i not in self.parked), key=lambda i: self.running[i].started)
        while len(going) > 1 and self.cached(now) > self.cache_tokens:
            self.running[going[-1]].stand_still(now)
            self.parked.insert(0, going.pop())

    def unpark(self, now: float) -> int | None:
        """The oldest of the parked, if there is room for it again."""
        if self.parked:
            room = self.cache_tokens - self.cached(now)
            alone = all(i in self.parked for i in self.running)
            if alone or self.running[self.parked[0]].decoded + 20 <= room:
                return self.parked.pop(0)
        return None

    def forget(self, trajectory_id: int) -> None:
        self.running.pop(trajectory_id, None)
        if trajectory_id in self.parked:
            self.parked.remove(trajectory_id)
        self.queue = deque(item for item in self.queue if item.trajectory_id != trajectory_id)

    def give_up(self, trajectory_id: int, now: float) -> Queued | None:
        """Take out what is held of a trajectory, None where nothing is."""
        run = self.running.get(trajectory_id)
        found = next((item for item in self.queue if item.trajectory_id == trajectory_id), None)
        if run is not None:
            if trajectory_id not in self.parked:
                run.stand_still(now)
            found = Queued(trajectory_id, run.attempt, run.versions[-1], run)
        self.forget(trajectory_id)
        return found
