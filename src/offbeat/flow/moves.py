"""The orchestrator (DORA, arXiv 2604.26256, section 4): which lanes keep which versions, and who moves for it.

On a trigger (publish, pressure on keys and values, timer) lanes are divided among the versions alive in proportion to
their work; an older version is drawn together on the lanes where most of it runs, which frees the others for the
newest. Where every lane can hold every version, only the load is evened. A trajectory keeps its version on its way
(C1), and its lane has it until it says `Departed`. This file does not know engines or how a cache travels.
"""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import TYPE_CHECKING

from offbeat.events import Command, Move
from offbeat.flow.lanes import Health, Lane
from offbeat.flow.ledger import Member
from offbeat.flow.partition import keepers
from offbeat.flow.placement import load, ready_lanes, roomiest, unload
from offbeat.flow.roomiest import Homes, Scale

if TYPE_CHECKING:
    from offbeat.flow.scheduler import Scheduler

UNEVEN = 0.25
"""Lanes of one version are evened once they differ by more than this share of their slots."""


def orchestrate(s: Scheduler) -> list[Command]:
    """Divide the ready lanes among the versions alive. Trajectories already on their way are left to arrive."""
    lanes = [lane for lane in ready_lanes(s.lanes) if not lane.paused and not lane.departing]
    if len(lanes) < 2:
        return []
    work = _work(s, lanes)
    room = s.plan.live_versions
    share = s.schedule.share(work, s.window.newest, len(lanes), room, _floor(s, lanes, work))
    kept = keepers(share, {lane.lane: lane.using for lane in lanes}, room)
    commands = _draw_together(s, lanes, kept) + _relieve(s, lanes)
    for version in sorted(share, reverse=True):
        holders = [lane for lane in lanes if version in kept[lane.lane]]
        commands += _spread(s, lanes, holders, version)
    return commands


def even_out(s: Scheduler, version: int) -> list[Command]:
    """A lane has just taken up an older version to help with it."""
    lanes = [lane for lane in ready_lanes(s.lanes) if version in lane.loaded and not lane.departing]
    return _even(s, lanes, version) if len(lanes) > 1 else []


def let_go(s: Scheduler, member: Member) -> bool:
    """The lane of a member forgets it, and so does the one that expects it; was it the last of its version there?"""
    if member.destination >= 0:
        _no_longer_bound(s, member)
    return s.lanes[member.lane].let_go(member.trajectory_id)


def arrival(s: Scheduler, member: Member) -> Lane:
    """Where a member that departed goes: as planned, else to the roomiest lane of its version, else back."""
    planned = _no_longer_bound(s, member)
    if planned and planned.health is Health.READY and member.version in planned.loaded:
        return planned
    return roomiest(ready_lanes(s.lanes), member.version) or s.lanes[member.lane]


def _no_longer_bound(s: Scheduler, member: Member) -> Lane | None:
    """The lane that expected a member expects it no more."""
    if member.destination < 0:
        return None
    planned = s.lanes[member.destination]
    planned.expect_no_more(member)
    member.destination = -1
    return planned


def _work(s: Scheduler, lanes: list[Lane]) -> dict[int, int]:
    """Trajectories of each version on these lanes; of the newest also those that may be issued now (top-up)."""
    work: Counter[int] = Counter()
    for lane in lanes:
        work.update(lane.using)
    top_up = min(s.schedule.headroom(s.window), (s.most_groups - s.ledger.issued) * s.plan.group_size)
    work[s.window.newest] += max(0, top_up)
    return {version: count for version, count in work.items() if count}


def _floor(s: Scheduler, lanes: list[Lane], work: dict[int, int]) -> dict[int, int]:
    """The lanes a version needs at least: for its trajectories' slots and for their keys and values."""
    slots = min(lane.slots for lane in lanes)
    floor = {version: max(1, ceil(count / slots)) for version, count in work.items()}
    if s.plan.cache_tokens is not None:
        cached: Counter[int] = Counter()
        for lane in lanes:
            for member in lane.held.values():
                cached[member.version] += member.tokens
        floor = {version: max(least, ceil(cached[version] / s.plan.cache_tokens)) for version, least in floor.items()}
    return floor | {s.window.newest: 1} if s.window.newest in floor else floor


def _draw_together(s: Scheduler, lanes: list[Lane], kept: dict[int, set[int]]) -> list[Command]:
    """Empty the lanes that are to leave a version, where its other lanes have slots for all of it."""
    commands: list[Command] = []
    homes: dict[int, Homes] = {}
    for lane in sorted(lanes, key=lambda lane: len(lane.held)):
        for version in sorted(set(lane.using) - kept[lane.lane]):
            members = [m for m in lane.held.values() if m.version == version]
            if version not in homes:
                homes[version] = Homes(x for x in lanes if version in kept[x.lane] and version in x.loaded)
            if len(members) == lane.using[version] and homes[version].free >= len(members):
                for member in members:
                    _expect(homes[version].take(), member)
                commands += _moves(s, lane, members)
    return commands


def _spread(s: Scheduler, lanes: list[Lane], holders: list[Lane], version: int) -> list[Command]:
    """Let idle lanes that are to help with an older version take it up, where that will even something out; even out
    those that have it.
    """
    commands: list[Command] = []
    fullest = max((lane.load for lane in holders if version in lane.loaded), default=0)
    for lane in holders if version != s.window.newest else []:
        idle = not (lane.using or lane.loading or lane.evaluating)
        if version not in lane.loaded and idle and _uneven(fullest, lane):
            if len(lane.loaded) >= s.plan.live_versions:
                commands.append(unload(lane, min(lane.loaded)))
            commands.append(load(lane, version))
    return commands + _even(s, [lane for lane in holders if version in lane.loaded], version)


def _uneven(fuller: int, lane: Lane) -> bool:
    return fuller - lane.load > max(1, UNEVEN * lane.slots)


def _even(s: Scheduler, lanes: list[Lane], version: int) -> list[Command]:
    """Move from the fullest of these lanes to the emptiest while that is worth it."""
    commands: list[Command] = []
    scale = Scale(lanes)
    while len(lanes) > 1:
        source, target = scale.fullest(), scale.emptiest()
        if not _uneven(source.load, target) or target.free < 1:
            break
        movable = [m for m in source.held.values() if m.version == version and m.destination < 0]
        if not movable:
            break
        members = movable[: min((source.load - target.load) // 2, target.free)]
        for member in members:
            _expect(target, member)
        commands += _moves(s, source, members)
        scale.weigh(source)
        scale.weigh(target)
    return commands


def _relieve(s: Scheduler, lanes: list[Lane]) -> list[Command]:
    """Move what is parked for want of room to lanes that hold its version, have a slot and the room."""
    if s.plan.cache_tokens is None:
        return []
    commands: list[Command] = []
    room = {lane.lane: s.plan.cache_tokens - lane.cached for lane in lanes}
    for lane in lanes:
        moved = []
        for member in [lane.held[i] for i in lane.parked if i in lane.held and lane.held[i].destination < 0]:
            homes = [
                x for x in lanes
                if x is not lane and member.version in x.loaded and x.free > 0 and room[x.lane] > 2 * member.tokens
            ]  # fmt: skip
            if homes:
                home = max(homes, key=lambda x: (room[x.lane], -x.lane))
                room[home.lane] -= 2 * member.tokens
                _expect(home, member)
                moved.append(member)
        commands += _moves(s, lane, moved)
    return commands


def _expect(lane: Lane, member: Member) -> None:
    member.destination = lane.lane
    lane.expect(member)


def _moves(s: Scheduler, source: Lane, members: list[Member]) -> list[Command]:
    """One command for each lane they go to."""
    by_target: dict[int, list[int]] = {}
    for member in members:
        source.sends(member.trajectory_id)
        by_target.setdefault(member.destination, []).append(member.trajectory_id)
    keep = s.plan.migration == "cache"
    return [Move(source.lane, to, tuple(ids), keep) for to, ids in sorted(by_target.items())]
