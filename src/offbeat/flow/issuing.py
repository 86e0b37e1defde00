"""Starting new groups: as many as the schedule admits, newest version first, on the roomiest lane that holds it.

*Legacy fill*: a lane that still holds an older version may be filled under that, but never under the oldest version
that is outstanding while another lane has a newer one, or the oldest would not come to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offbeat.events import Command
from offbeat.flow.lanes import Lane
from offbeat.flow.placement import ready_lanes, roomiest, send

if TYPE_CHECKING:
    from offbeat.flow.scheduler import Scheduler


def issue(s: Scheduler) -> list[Command]:
    """Start groups under the newest version of a lane, or the one the schedule pins, as far as the schedule admits.

    What is not admitted under the newest version is admitted under no older one.
    """
    commands: list[Command] = []
    while s.ledger.issued < s.most_groups and s.vacant:
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
    s.vacant = {lane for lane in s.vacant if s.lanes[lane].free > 0}
    lanes = ready_lanes(s.lanes[i] for i in sorted(s.vacant))
    if not s.schedule.refills:
        lanes = [lane for lane in lanes if lane.given < lane.slots]
    if version is None and ((s.schedule.moves and len(s.lanes) > 1) or not s.plan.legacy_fill):
        lanes = _fillable(s, lanes)
    return roomiest(lanes, version)


def _fillable(s: Scheduler, lanes: list[Lane]) -> list[Lane]:
    """Those with the newest version among them, if that may be filled."""
    version = max((lane.newest for lane in lanes if lane.newest is not None), default=None)
    if version is None or (version < s.window.newest and not _may_fill_legacy(s, version)):
        return []
    return [lane for lane in lanes if lane.newest == version]


def _may_fill_legacy(s: Scheduler, version: int) -> bool:
    """Only with what lanes about to take up the newest version leave over."""
    ready = ready_lanes(s.lanes)
    if version < max(max(lane.loaded | lane.loading, default=0) for lane in ready):
        oldest = s.window.oldest()
        if not s.plan.legacy_fill or oldest is None or version <= oldest:
            return False
    reserved = sum(max(0, lane.slots - lane.load) for lane in ready if lane.turning)
    return s.schedule.headroom(s.window) >= reserved + s.plan.group_size
