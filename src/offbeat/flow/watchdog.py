"""Names the culprit when nothing progresses: which lane, which prompt, which call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offbeat.flow.lanes import Health
from offbeat.flow.ledger import Status

if TYPE_CHECKING:
    from offbeat.flow.scheduler import Scheduler


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
            f" (prompt {member.group.group_id}, version {member.group.version})"
        )
    for group in scheduler.ledger.live.values():
        for member in group.members:
            if member.status is Status.FINISHED:
                return f"the scorer does not answer for trajectory {member.trajectory_id} (prompt {group.group_id})"
    if scheduler.evaluations:
        return f"the evaluation of version {min(scheduler.evaluations)} does not end"
    return "no work is under way"
