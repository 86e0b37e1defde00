"""Starting new groups: as many as the schedule admits, newest version first, on the roomiest lane that holds it.

*Legacy fill*: a lane that still holds an older version may be filled under that, but never under the oldest version
that is outstanding while another lane has a newer one, or the oldest would not come to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offbeat.events import Command
from offbeat.flow.lanes import Lane
from offbeat.flow.placement import send
from offbeat.flow.vacancies import ANY

if TYPE_CHECKING:
    from offbeat.flow.scheduler import Scheduler


def issue(s: Scheduler) -> list[Command]:
    """Start groups under the newest version of a lane, or the one the schedule pins, as far as the schedule admits.

    What is not admitted under the newest version is admitted under no older one.
    """
    commands: list[Command] = []
    while s.ledger.issued < s.most_groups and s.vacancies.vacant:
        pinned = s.schedule.pins(s.window)
        if not s.schedule.admits(s.window, s.window.newest if pinned is None else pinned):
            break
        lane = _lane(s, pinned)
        if lane is None:
            break
        version = lane.newest if pinned is None else pinned
        assert version is not None
        if not s.schedule.admits(s.window, version):
            break
        group = s.ledger.issue(version)
        commands.append(send(s.ledger, s.leases, lane, version, group, group.members, s.now))
    return commands


def _lane(s: Scheduler, version: int | None) -> Lane | None:
    if version is not None:
        return s.vacancies.best(("holds", version))
    if (s.schedule.moves and len(s.lanes) > 1) or not s.plan.legacy_fill:
        return _fillable(s)
    return s.vacancies.best(ANY)


def _fillable(s: Scheduler) -> Lane | None:
    """The roomiest of those with the newest version among them, if that may be filled."""
    version = s.vacancies.newest
    if version is None or (version < s.window.newest and not _may_fill_legacy(s, version)):
        return None
    return s.vacancies.best(("newest", version))


def _may_fill_legacy(s: Scheduler, version: int) -> bool:
    """Only with what lanes about to take up the newest version leave over."""
    if version < s.vacancies.highest:
        oldest = s.window.oldest()
        if not s.plan.legacy_fill or oldest is None or version <= oldest:
            return False
    return s.schedule.headroom(s.window) >= s.vacancies.reserved + s.plan.group_size
