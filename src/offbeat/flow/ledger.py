"""The ledger: every trajectory ever issued is in exactly one place.

*Conservation law* (C2): issued = live + consumed + quarantined, checked after every event. What the learner has
in hand counts as live: a batch is consumed only once its `Trained` is logged. *Exactly once*: only a live
group can be consumed, and consuming it ends its life here. *Flat*: what has ended is counted, and which it was is kept
in room for what lives (`ended`); reasons are in the run log.

    member   WAITING --dispatch--> RUNNING --finish--> FINISHED --score--> SCORED
                ^------restart--------'  (a new attempt; the same version under C1)
    group    live --take--> training --consume--> consumed        live --quarantine--> quarantined
             live --evict--> evicted, its prompt queued again

The ledger does not know lanes' health, time or schedules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum

from offbeat.errors import InvariantError
from offbeat.flow.ended import Ended


class Status(Enum):
    __hash__ = object.__hash__  # members are singletons; the inherited hash of the name is slow

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    SCORED = "scored"


TRANSITIONS: dict[tuple[Status, str], Status] = {
    (Status.WAITING, "dispatch"): Status.RUNNING,
    (Status.RUNNING, "finish"): Status.FINISHED,
    (Status.RUNNING, "restart"): Status.WAITING,
    (Status.FINISHED, "score"): Status.SCORED,
}


class Member:
    """One trajectory of a live group. `attempt` counts dispatches; `failures` those that failed.

    `version` samples its next token: its group's for ever under C1, the newest under schedules that splice.
    `destination` is the lane it is on its way to while `lane` still has it, -1 otherwise.
    """

    __slots__ = (
        "attempt",
        "destination",
        "failures",
        "group",
        "lane",
        "lease",
        "score_failures",
        "status",
        "tokens",
        "trajectory_id",
        "version",
    )

    def __init__(self, trajectory_id: int, group: LiveGroup) -> None:
        self.trajectory_id = trajectory_id
        self.group = group
        self.status = Status.WAITING
        self.attempt = -1
        self.failures = 0
        self.score_failures = 0
        self.lane = -1
        self.destination = -1
        self.lease = 0.0
        self.tokens = 0
        self.version = group.version

    def move(self, action: str) -> None:
        after = TRANSITIONS.get((self.status, action))
        if after is None:
            raise InvariantError(f"trajectory {self.trajectory_id}: cannot {action} while {self.status.value}")
        self.status = after


class LiveGroup:
    """A group from issue to consumption. Its version never changes: the oldest that can sample a token of it."""

    __slots__ = ("group_id", "members", "prompt_id", "unscored", "version")

    def __init__(self, group_id: int, prompt_id: int, version: int, size: int) -> None:
        self.group_id = group_id
        self.prompt_id = prompt_id
        self.version = version
        self.members = [Member(group_id * size + i, self) for i in range(size)]
        self.unscored = size


class Ledger:
    """Counts and places. Sizes are in groups inside and in trajectories where a name says so."""

    def __init__(self, group_size: int) -> None:
        self.group_size = group_size
        self.issued = 0
        self.live: dict[int, LiveGroup] = {}
        self.training: dict[int, LiveGroup] = {}
        self.ended = Ended()
        """The groups that were consumed, quarantined or evicted: so many, in all."""
        self.consumed = self.quarantined = self.evicted = 0
        self.next_prompt = 0
        self.queued_again: deque[int] = deque()
        """Prompts of evicted groups, to be issued before new ones."""
        self.outstanding_by_version: dict[int, int] = {}
        self.ready_by_version: dict[int, dict[int, LiveGroup]] = {}
        self.waiting: dict[int, Member] = {}
        self._ready = 0
        self._in_training: set[int] = set()

    # -- reading ---------------------------------------------------------------------------------------------

    def member(self, trajectory_id: int) -> Member | None:
        """The live trajectory with this id, or None if it is in training, consumed, quarantined or unknown."""
        group = self.live.get(trajectory_id // self.group_size)
        return group.members[trajectory_id % self.group_size] if group else None

    def outstanding(self, u: int) -> int:
        """Trajectories of version <= u that are live and not given to the trainer."""
        return self.group_size * sum(n for version, n in self.outstanding_by_version.items() if version <= u)

    def ready(self) -> Iterator[LiveGroup]:
        """Fully scored groups, oldest version first, then in the order in which they became ready."""
        for version in sorted(self.ready_by_version):
            yield from self.ready_by_version[version].values()

    def ready_count(self) -> int:
        return self._ready

    def needs(self, version: int) -> bool:
        """Is any trajectory of this version still to be generated, scored or trained on?"""
        return version in self.outstanding_by_version or version in self._in_training

    # -- writing ---------------------------------------------------------------------------------------------

    def issue(self, version: int) -> LiveGroup:
        prompt_id = self.queued_again.popleft() if self.queued_again else self.next_prompt
        self.next_prompt = max(self.next_prompt, prompt_id + 1)
        group = LiveGroup(self.issued, prompt_id, version, self.group_size)
        self.issued += 1
        self.live[group.group_id] = group
        self.outstanding_by_version[version] = self.outstanding_by_version.get(version, 0) + 1
        self.waiting.update((m.trajectory_id, m) for m in group.members)
        return group

    def dispatch(self, member: Member, version: int, lane: int, lease: float) -> None:
        member.move("dispatch")
        member.attempt += 1
        member.version = version
        member.lane, member.lease, member.tokens = lane, lease, 0
        del self.waiting[member.trajectory_id]

    def restart(self, member: Member, failed: bool) -> None:
        member.move("restart")
        member.failures += failed
        member.lane = member.destination = -1
        self.waiting[member.trajectory_id] = member

    def finish(self, member: Member) -> None:
        member.move("finish")
        member.lane = member.destination = -1

    def score(self, member: Member) -> None:
        member.move("score")
        group = member.group
        group.unscored -= 1
        if group.unscored == 0:
            self.ready_by_version.setdefault(group.version, {})[group.group_id] = group
            self._ready += 1

    def take(self, groups: list[LiveGroup]) -> None:
        """Give ready groups to the trainer."""
        for group in groups:
            if group.unscored:
                raise InvariantError(f"group {group.group_id}: taken for training with {group.unscored} unscored")
            self._leave(group)
            self.training[group.group_id] = group
            self._in_training.add(group.version)

    def consume(self) -> None:
        """The groups in training are consumed: their `Trained` is being logged."""
        twice = sorted(group_id for group_id in self.training if group_id in self.ended)
        if twice:
            raise InvariantError(f"C2: groups {twice} would be consumed twice")
        for group_id in self.training:
            self.ended.add(group_id)
        self.consumed += len(self.training)
        self.training = {}
        self._in_training = set()

    def quarantine(self, group: LiveGroup) -> None:
        self._give_up(group)
        self.quarantined += 1

    def evict(self, group: LiveGroup) -> None:
        """Give up all of a group and queue its prompt again: what C2 pays for liveness."""
        self._give_up(group)
        self.evicted += 1
        self.queued_again.append(group.prompt_id)

    def _give_up(self, group: LiveGroup) -> None:
        self._leave(group)
        self.ended.add(group.group_id)
        for member in group.members:
            self.waiting.pop(member.trajectory_id, None)

    def _leave(self, group: LiveGroup) -> None:
        if self.live.pop(group.group_id, None) is None:
            raise InvariantError(f"C2: group {group.group_id} is not live")
        left = self.outstanding_by_version[group.version] - 1
        if left:
            self.outstanding_by_version[group.version] = left
        else:
            del self.outstanding_by_version[group.version]
        ready = self.ready_by_version.get(group.version)
        if ready is not None:
            self._ready -= ready.pop(group.group_id, None) is not None
            if not ready:
                del self.ready_by_version[group.version]

    # -- the law ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Conservation law: raises InvariantError when a group is nowhere or in two places."""
        places = len(self.live) + len(self.training) + self.consumed + self.quarantined + self.evicted
        if self.issued != places:
            raise InvariantError(
                f"C2: issued {self.issued} groups, but live {len(self.live)} + training {len(self.training)}"
                f" + consumed {self.consumed} + quarantined {self.quarantined} + evicted {self.evicted} = {places}"
            )
        if len(self.ended) != self.consumed + self.quarantined + self.evicted:
            raise InvariantError(f"C2: {len(self.ended)} groups have ended, but not so many were counted")
        if sum(self.outstanding_by_version.values()) != len(self.live):
            raise InvariantError("C2: the outstanding counts by version do not add up to the live groups")
