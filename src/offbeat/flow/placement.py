"""Placing work on lanes: which versions a lane holds, where waiting trajectories and new groups go.

C1: a trajectory is only ever sent to a lane that has its own version loaded; schedules that splice give up that
invariant, and only through `continue_under`. A group goes to the lane with the
most free slots while it has at least one, so a lane's queue stays shorter than a group and a freed slot is
refilled without asking. This file knows nothing of admission: it asks the schedule.
"""

from __future__ import annotations

from collections.abc import Iterable

from offbeat.events import Command, Continue, Generate, LoadVersion, Pause, UnloadVersion
from offbeat.flow.lanes import Health, Lane
from offbeat.flow.leases import Leases
from offbeat.flow.ledger import Ledger, LiveGroup, Member


def ready_lanes(lanes: Iterable[Lane]) -> list[Lane]:
    return [lane for lane in lanes if lane.health is Health.READY]


def load(lane: Lane, version: int) -> LoadVersion:
    lane.begin_loading(version)
    return LoadVersion(lane.lane, version)


def unload(lane: Lane, version: int) -> UnloadVersion:
    lane.drop(version)
    return UnloadVersion(lane.lane, version)


def turn_over_versions(lane: Lane, wanted: set[int], target: int, newest: int, live_versions: int) -> list[Command]:
    """Unload what nobody needs, load what is wanted and the `target` of new groups (older first: their trajectories
    wait longest), and the newest version ahead of its time where there is room.
    """
    commands: list[Command] = []
    for version in sorted(lane.idle_versions() - wanted - {target}):
        commands.append(unload(lane, version))
    for version in sorted((wanted | {target}) - lane.loaded - lane.loading):
        if len(lane.loaded) + len(lane.loading) >= live_versions and not _make_room(lane, wanted, commands):
            break
        commands.append(load(lane, version))
    room = len(lane.loaded) + len(lane.loading) < live_versions
    if room and newest not in lane.loaded and newest not in lane.loading:
        commands.append(load(lane, newest))
    return commands


def _make_room(lane: Lane, wanted: set[int], commands: list[Command]) -> bool:
    """Give up the lane's newest version too if nothing on it runs: a lane may be bound to one version only."""
    used = lane.using.keys() | lane.evaluating | wanted
    for version in sorted(lane.loaded - used):
        commands.append(unload(lane, version))
        return True
    return False


def send(
    ledger: Ledger, leases: Leases, lane: Lane, version: int, group: LiveGroup, members: list[Member], now: float
) -> Generate:
    """Dispatch waiting members of one group to a lane that holds `version`: the group's own, under C1."""
    for member in members:
        ledger.dispatch(member, version, lane.lane, now + leases.seconds)
        lane.take(member)
        leases.grant(member)
    return Generate(
        lane=lane.lane,
        version=version,
        group_id=group.group_id,
        prompt_id=group.prompt_id,
        trajectory_ids=tuple(m.trajectory_id for m in members),
        attempts=tuple(m.attempt for m in members),
    )


def roomiest(lanes: list[Lane], version: int | None = None) -> Lane | None:
    """The ready lane with most free slots, at least one; holding `version` if one is named."""
    open_lanes = [lane for lane in lanes if lane.free > 0 and not lane.paused and not lane.departing]
    fitting = [lane for lane in open_lanes if (lane.loaded if version is None else version in lane.loaded)]
    return max(fitting, key=lambda lane: (lane.free, -lane.lane), default=None)


def resend_waiting(
    ledger: Ledger, leases: Leases, lanes: list[Lane], now: float, newest: int | None = None
) -> list[Command]:
    """Dispatch trajectories that wait to be restarted, oldest first: under their own version, or all under `newest`."""
    by_group: dict[int, list[Member]] = {}
    for member in sorted(ledger.waiting.values(), key=lambda m: (m.group.version, m.trajectory_id)):
        by_group.setdefault(member.group.group_id, []).append(member)
    commands: list[Command] = []
    for members in by_group.values():
        version = members[0].group.version if newest is None else newest
        lane = roomiest(lanes, version)
        if lane is not None:
            commands.append(send(ledger, leases, lane, version, members[0].group, members, now))
    return commands


def pause(lanes: list[Lane]) -> list[Command]:
    """Let every lane stand still."""
    commands: list[Command] = []
    for lane in lanes:
        if not lane.paused:
            lane.stand(still=True)
            commands.append(Pause(lane.lane))
    return commands


def continue_under(lanes: list[Lane], version: int, keep_cache: bool, now: float, lease: float) -> list[Command]:
    """Let all that is held go on under `version`, wherever it is loaded and something is of another or stands still.

    Nobody is blamed for having stood still: leases last until `lease` again.
    """
    commands: list[Command] = []
    for lane in lanes:
        behind = lane.using.keys() - {version}
        if version in lane.loaded and (behind or lane.paused):
            lane.stand(still=False)
            lane.progress_at = now
            lane.switch(version)
            for member in lane.held.values():
                member.lease = max(member.lease, lease)
            commands.append(Continue(lane.lane, version, keep_cache))
    return commands
