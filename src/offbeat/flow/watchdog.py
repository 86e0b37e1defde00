"""What the passing of time alone changes: leases that run out, lanes that fall silent, the time limit, a stalled run.

A run without progress fails and the culprit is named: which lane, which prompt, which call. *Blame*: only time in which
the world listened counts against anybody.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from offbeat.events import Abort, Command
from offbeat.flow.lanes import Health
from offbeat.flow.ledger import Member, Status
from offbeat.flow.placement import ready_lanes

if TYPE_CHECKING:
    from offbeat.flow.scheduler import Scheduler


def watch(s: Scheduler) -> list[Command]:
    """Asked after every event."""
    commands: list[Command] = []
    if s.now - s.listened_at >= s.plan.lease_seconds / 16:
        commands += _listen(s)
    for member in list(s.leases.expired(s.now)) if s.leases.earliest <= s.now else []:
        if member.status is Status.RUNNING and member.group.group_id in s.ledger.live:
            commands += _lease_ran_out(s, member)
    limit = s.plan.time_limit_seconds
    if limit is not None and s.now >= limit:
        left = ceil(s.window.in_hand() / s.plan.batch_size)
        s.goal = min(s.goal, s.window.newest + left)
    if s.now - s.progress_at > s.plan.stall_seconds:
        s.stop("failed", f"no progress for {s.plan.stall_seconds:.0f} s: {culprit(s)}")
    return commands


def excuse(s: Scheduler, seconds: float) -> None:
    """The last `seconds` count against nobody: the world could not hear."""
    s.progress_at += seconds
    for lane in s.lanes:
        lane.heard_at += seconds
        lane.progress_at += seconds
        if lane.owes_since is not None:
            lane.owes_since += seconds
        lane.owed = {version: since + seconds for version, since in lane.owed.items()}
        for member in lane.held.values():
            member.lease += seconds


def _listen(s: Scheduler) -> list[Command]:
    """Lanes that owe an answer and say nothing, or load and load, looked for sixteen times a lease."""
    s.listened_at = s.now
    commands: list[Command] = []
    for lane in ready_lanes(s.lanes):
        silence, loads = lane.silent_for(s.now), lane.loads_for(s.now)
        if silence >= s.plan.lease_seconds:
            commands += s.lose_lane(lane, f"lane {lane.lane} said nothing for {silence:.0f} s")
        elif loads >= s.plan.stall_seconds:
            commands += s.lose_lane(lane, f"lane {lane.lane} did not load version {min(lane.loading)} in {loads:.0f} s")
    return commands


def _lease_ran_out(s: Scheduler, member: Member) -> list[Command]:
    """Restart one trajectory, or its lane where nothing there advances. What stands still on purpose has time."""
    lane = s.lanes[member.lane]
    if lane.paused:
        member.lease = s.now + s.plan.lease_seconds
        s.leases.grant(member)
        return []
    reason = (
        f"trajectory {member.trajectory_id} (prompt {member.group.prompt_id}, version {member.group.version}):"
        f" no token for {s.plan.lease_seconds:.0f} s"
    )
    if s.now - lane.progress_at >= s.plan.lease_seconds:
        return s.lose_lane(lane, f"lane {lane.lane} is silent; {reason}")
    return [Abort(lane.lane, (member.trajectory_id,)), *s.generation_failed(member, reason)]


def culprit(scheduler: Scheduler) -> str:
    """One sentence on what the run waits for; the most likely cause first."""
    if scheduler.window.training:
        return f"the learner does not answer for iteration {scheduler.window.newest}"
    if scheduler.learner is not Health.READY:
        return f"the learner does not come up with version {scheduler.window.newest}"
    for lane in scheduler.lanes:
        if lane.health is not Health.READY:
            return f"lane {lane.lane} does not come up"
        if lane.loading:
            return f"lane {lane.lane} does not load version {min(lane.loading)}"
    running = [m for lane in scheduler.lanes for m in lane.held.values()]
    if running:
        member = min(running, key=lambda m: (m.group.version, m.trajectory_id))
        return (
            f"lane {member.lane} does not finish trajectory {member.trajectory_id}"
            f" (prompt {member.group.prompt_id}, version {member.group.version})"
        )
    for group in scheduler.ledger.live.values():
        for member in group.members:
            if member.status is Status.FINISHED:
                return f"the scorer does not answer for trajectory {member.trajectory_id} (prompt {group.prompt_id})"
    if scheduler.evaluations:
        return f"the evaluation of version {min(scheduler.evaluations)} does not end"
    return "no work is under way"
