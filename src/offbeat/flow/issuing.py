"""Starting new groups: as many as the schedule admits, on the roomiest lane that holds the version they start under.

*Fresh start*: where lanes choose among versions, a group starts under the newest while a lane that holds it, or is
about to, has a slot; what a publish opens up waits for the weights and is spread over all lanes that will have them.
Three things start under an older version: anything while nothing newer is coming to any lane; what refills a lane that
is nearly full while newer weights load beside; and, with *legacy fill* (DORA, arXiv 2604.26256v1, Algorithm 1, step 4),
what has no slot under the newest. The last never under the oldest outstanding, or that would not come to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offbeat.events import Command
from offbeat.flow.lanes import Lane
from offbeat.flow.placement import send
from offbeat.flow.vacancies import ANY

if TYPE_CHECKING:
    from offbeat.flow.scheduler import Scheduler

NEARLY_FULL = 0.125
"""Share of a lane's slots that may be free for it to be refilled under an older version."""


def issue(s: Scheduler) -> list[Command]:
    """Start groups under the newest version of a lane, or the one the schedule pins, as far as the schedule admits.

    What is not admitted under the newest version is admitted under no older one.
    """
    commands: list[Command] = []
    while s.ledger.issued < s.most_groups:
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


def _lane(s: Scheduler, pinned: int | None) -> Lane | None:
    if pinned is not None:
        return s.vacancies.best(("holds", pinned))
    if not s.schedule.moves:
        return s.vacancies.best(ANY)
    newest = s.vacancies.newest
    lane = None if newest is None else s.vacancies.best(("newest", newest))
    if lane is None or newest is None:
        return None
    if newest < s.window.newest:
        return lane if _may_be_older(s, lane, newest) else None
    return lane if _left_over(s, lane.free) else None


def _may_be_older(s: Scheduler, lane: Lane, version: int) -> bool:
    """May groups start under this version, the newest of this lane and not the newest there is?"""
    if version >= s.vacancies.highest and not s.vacancies.reserved():
        return True
    if lane.free <= NEARLY_FULL * lane.slots and any(coming > version for coming in lane.loading):
        return True
    oldest = s.window.oldest()
    return s.plan.legacy_fill and oldest is not None and version > oldest and _left_over(s, 0)


def _left_over(s: Scheduler, free: int) -> bool:
    """Is a group left over by the lanes about to hold the newest version that have more than so many free slots?"""
    reserved = s.vacancies.reserved(free)
    return not reserved or s.schedule.headroom(s.window) >= reserved + s.plan.group_size
