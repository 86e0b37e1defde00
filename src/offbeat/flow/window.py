"""What a schedule may look at: counts and sizes, nothing it could change."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from offbeat.flow.ledger import Ledger, LiveGroup
from offbeat.flow.plan import Plan
from offbeat.flow.staleness import staleness
from offbeat.flow.steering import Steering


class Window:
    """The state of a run as a schedule sees it.

    `iteration` is the next RL iteration to start; `newest` the newest published version. They are equal while
    the learner is idle; while it trains, iteration = newest + 1.
    """

    def __init__(self, plan: Plan, ledger: Ledger, steering: Steering) -> None:
        self.plan = plan
        self._steering = steering
        self._ledger = ledger
        self.iteration = 0
        self.newest = 0

    @property
    def bound(self) -> int:
        """The staleness that admission allows: the plan's bound, or less where the autopilot says so."""
        return self._steering.bounded(self.plan.bound)

    @property
    def training(self) -> bool:
        return bool(self._ledger.training)

    def staleness(self, version: int) -> int:
        """Staleness of a trajectory of `version` if the next batch took it."""
        return staleness(self.iteration, version)

    def outstanding(self, u: int) -> int:
        """Trajectories of version <= u, issued and not yet given to the trainer."""
        return self._ledger.outstanding(u)

    def oldest(self) -> int | None:
        """The oldest version of what is outstanding."""
        return min(self._ledger.outstanding_by_version, default=None)

    def in_hand(self) -> int:
        """All trajectories outstanding, those in training included."""
        return self.plan.group_size * (len(self._ledger.live) + len(self._ledger.training))

    def ready(self) -> Iterator[LiveGroup]:
        """Groups ready to train on, oldest version first."""
        return self._ledger.ready()

    def room(self) -> int:
        """Trajectories that may still become outstanding, the batch in training included; negative beyond the limit."""
        return self.plan.outstanding_limit - self.in_hand()

    def has_room(self) -> bool:
        """Is there room for one more group?"""
        return self.room() >= self.plan.group_size

    def oldest_batch(self) -> list[LiveGroup] | None:
        """The oldest ready groups that make a batch, or None while there are too few."""
        groups = self.plan.groups_per_batch
        return list(islice(self.ready(), groups)) if self.ready_count() >= groups else None

    def ready_count(self) -> int:
        return self._ledger.ready_count()
