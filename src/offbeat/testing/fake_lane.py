"""What the fake world knows of a lane: what runs, what queues, what it holds loaded. It decides nothing."""

from __future__ import annotations

from collections import deque


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
        return int(self.tokens - self.left)


class Queued:
    """A request that waits for a slot: a new one, or a response that came from another lane."""

    def __init__(self, trajectory_id: int, attempt: int, version: int, response: Response | None = None) -> None:
        self.trajectory_id = trajectory_id
        self.attempt = attempt
        self.version = version
        self.response = response


class FakeLane:
    def __init__(self, slots: int) -> None:
        self.life = 0
        self.slots = slots
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
        return self.life

    def uses(self, version: int) -> bool:
        return any(run.versions[-1] == version for run in self.running.values()) or any(
            item.version == version for item in self.queue
        )

    def forget(self, trajectory_id: int) -> None:
        self.running.pop(trajectory_id, None)
        self.queue = deque(item for item in self.queue if item.trajectory_id != trajectory_id)

    def give_up(self, trajectory_id: int, now: float) -> Queued | None:
        """Take out what is held of a trajectory, None where nothing is."""
        run = self.running.get(trajectory_id)
        found = next((item for item in self.queue if item.trajectory_id == trajectory_id), None)
        if run is not None:
            run.stand_still(now)
            found = Queued(trajectory_id, run.attempt, run.versions[-1], run)
        self.forget(trajectory_id)
        return found
