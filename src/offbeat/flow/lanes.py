"""Rollout lanes as the scheduler sees them: what each one holds, how many slots are free, which versions it knows.

A lane never holds more than `live_versions` versions, counting those on their way. This file does not know
processes or engines.
"""

from __future__ import annotations

from enum import Enum

from offbeat.flow.ledger import Member


class Health(Enum):
    DOWN = "down"
    STARTING = "starting"
    READY = "ready"


class Lane:
    """One rollout unit: `held` maps the trajectories it has (running or queued there) to their members, `expected`
    those that are on their way to it from another lane, `using` counts both by version. They change through `take`,
    `let_go`, `expect`, `expect_no_more` and `switch` only. `departing` are the held ones that are on their way out,
    `parked` those that wait for room among the keys and values, of which `cached` tokens have some. `given` counts
    the trajectories taken since the lane was last empty. `life` counts its starts in this session.
    """

    __slots__ = (
        "cached",
        "decoded",
        "departing",
        "evaluating",
        "expected",
        "given",
        "health",
        "heard_at",
        "held",
        "lane",
        "life",
        "loaded",
        "loading",
        "losses",
        "owed",
        "owes_since",
        "parked",
        "paused",
        "progress_at",
        "settled",
        "slots",
        "touched",
        "using",
    )

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.life = 0
        self.touched: set[int] = set()
        """Where a lane says that it changed; whoever keeps account of lanes puts a set of its own here."""
        self.settled: object = None
        """What its versions were last looked at for, with nothing to do; None once it has changed since."""
        self.losses = 0
        self.clear(Health.DOWN, 0.0)

    def begin_life(self, now: float) -> None:
        """A new process, or a new place in one, is being started for it."""
        self.life += 1
        self.clear(Health.STARTING, now)

    def clear(self, health: Health, now: float) -> None:
        """Forget all that a process of this lane held."""
        self.touch()
        self.health = health
        self.slots = 0
        self.held: dict[int, Member] = {}
        self.expected: dict[int, Member] = {}
        self.departing: set[int] = set()
        self.parked: tuple[int, ...] = ()
        self.cached = 0
        self.given = 0
        self.using: dict[int, int] = {}
        self.loaded: set[int] = set()
        self.loading: set[int] = set()
        self.evaluating: set[int] = set()
        self.progress_at = now
        self.heard_at = now
        self.owes_since: float | None = None
        self.owed: dict[int, float] = {}
        self.decoded = 0
        self.paused = False

    def touch(self) -> None:
        """Something about it has changed."""
        self.touched.add(self.lane)
        self.settled = None

    def take(self, member: Member) -> None:
        self.held[member.trajectory_id] = member
        self.given += 1
        self._count(member, 1)

    def let_go(self, trajectory_id: int) -> bool:
        """Forget a trajectory if it is held; whether that was the last one of its version."""
        member = self.held.pop(trajectory_id, None)
        if member is None:
            return False
        self.departing.discard(trajectory_id)
        if not self.held:
            self.given = 0
        return self._count(member, -1)

    def expect(self, member: Member) -> None:
        self.expected[member.trajectory_id] = member
        self._count(member, 1)

    def expect_no_more(self, member: Member) -> None:
        if self.expected.pop(member.trajectory_id, None):
            self._count(member, -1)

    def _count(self, member: Member, change: int) -> bool:
        self.touch()
        left = self.using.get(member.version, 0) + change
        if left:
            self.using[member.version] = left
        else:
            del self.using[member.version]
        return not left

    def begin_loading(self, version: int) -> None:
        self.loading.add(version)
        self.touch()

    def hold(self, version: int) -> None:
        """What was loading is loaded."""
        self.loading.discard(version)
        self.loaded.add(version)
        self.touch()

    def drop(self, version: int) -> None:
        self.loaded.discard(version)
        self.touch()

    def examine(self, version: int) -> None:
        self.evaluating.add(version)
        self.touch()

    def examined(self, version: int) -> None:
        self.evaluating.discard(version)
        self.touch()

    def stand(self, still: bool) -> None:
        self.paused = still
        self.touch()

    def sends(self, trajectory_id: int) -> None:
        """A held trajectory is on its way out."""
        self.departing.add(trajectory_id)
        self.touch()

    def switch(self, version: int) -> None:
        """All that is held is of this version from now on."""
        for member in self.held.values():
            member.version = version
        self.using = {version: len(self.held)} if self.held else {}

    @property
    def free(self) -> int:
        """Slots without a trajectory, held or expected; negative while some of the held ones queue."""
        return self.slots - len(self.held) - len(self.expected)

    @property
    def load(self) -> int:
        """Trajectories once all on their way have arrived."""
        return len(self.held) - len(self.departing) + len(self.expected)

    def silent_for(self, now: float) -> float:
        """Seconds for which a lane that owes an answer has said nothing at all."""
        if not ((self.held and not self.paused) or self.loading or self.evaluating):
            self.owes_since = None
            return 0.0
        if self.owes_since is None:
            self.owes_since = now
        return now - max(self.heard_at, self.owes_since)

    def loads_for(self, now: float) -> float:
        """Seconds for which it has owed the version it loads longest, whatever else it says meanwhile."""
        self.owed = {version: self.owed.get(version, now) for version in self.loading}
        return now - min(self.owed.values(), default=now)

    @property
    def newest(self) -> int | None:
        return max(self.loaded) if self.loaded else None

    def idle_versions(self) -> set[int]:
        """Loaded versions that nothing on this lane uses, its newest one excepted."""
        newest = self.newest
        return {v for v in self.loaded if v not in self.using and v not in self.evaluating and v != newest}
