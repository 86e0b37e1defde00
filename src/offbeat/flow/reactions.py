"""What each event changes, one function per event; `REACTIONS` is the table the scheduler looks them up in.

Reactions only book what happened. What to do next is decided once for all events, in `Scheduler._advance`.
*Zombie rule*: an answer for an attempt that is no longer the current one, or from an earlier life of a lane, changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from offbeat import events as e
from offbeat.errors import InvariantError
from offbeat.flow.lanes import Health
from offbeat.flow.ledger import Member, Status
from offbeat.flow.moves import arrival, even_out, let_go
from offbeat.flow.watchdog import excuse

if TYPE_CHECKING:
    from offbeat.flow.scheduler import Scheduler

MAX_SCORE_FAILURES = 2
OF_A_LIFE = (e.LaneReady, e.LaneLost, e.VersionLoaded, e.Progress)
"""What lanes say of themselves; what they say of a trajectory names its attempt instead."""


def _current(s: Scheduler, trajectory_id: int, attempt: int, status: Status) -> Member | None:
    member = s.ledger.member(trajectory_id)
    return member if member and member.attempt == attempt and member.status is status else None


def opened(s: Scheduler, event: e.Opened) -> list[e.Command]:
    """Start every process; what ran in an earlier session waits to be restarted or is asked for again."""
    s.stopped = None
    s.quarantined_in_a_row = 0
    commands: list[e.Command] = []
    for lane in s.lanes:
        for member in list(lane.held.values()):
            s.ledger.restart(member, failed=False)
        lane.losses = lane.life = 0
        lane.begin_life(s.now)
        commands.append(e.StartLane(lane.lane))
    s.learner = Health.STARTING
    s.learner_losses = 0
    commands.append(e.StartLearner(s.window.newest))
    for group in s.ledger.live.values():
        commands += [s.score_command(m) for m in group.members if m.status is Status.FINISHED]
    s.evaluations = dict.fromkeys(s.evaluations)
    s.ask_for_evaluation(0)
    s.progressed()
    return commands


def lane_ready(s: Scheduler, event: e.LaneReady) -> list[e.Command]:
    lane = s.lanes[event.lane]
    lane.clear(Health.READY, s.now)
    lane.slots = event.slots
    s.progressed()
    return []


def lane_lost(s: Scheduler, event: e.LaneLost) -> list[e.Command]:
    return s.lose_lane(s.lanes[event.lane], event.reason, event.blamed)


def version_loaded(s: Scheduler, event: e.VersionLoaded) -> list[e.Command]:
    lane = s.lanes[event.lane]
    lane.heard_at = s.now
    s.stir(event.lane)
    if event.version in lane.loading:
        lane.hold(event.version)
        s.progressed()
        if s.may_move and event.version != s.window.newest:
            return even_out(s, event.version)
    return []


def progress(s: Scheduler, event: e.Progress) -> list[e.Command]:
    """Renew leases: of what advanced, and of what queues in a lane that advances."""
    lane = s.lanes[event.lane]
    lane.heard_at = s.now
    s.stir_nobody()
    lane.parked, lane.cached = event.parked, event.cached
    if event.parked:
        s.under_pressure = True
    for trajectory_id in event.parked:
        if trajectory_id in lane.held:
            lane.held[trajectory_id].lease = s.now + s.plan.lease_seconds
    if event.decoded <= lane.decoded:
        return []
    lane.decoded = event.decoded
    lane.progress_at = s.now
    for trajectory_id, tokens in zip(event.trajectory_ids, event.tokens, strict=True):
        member = lane.held.get(trajectory_id)
        if member and (tokens > member.tokens or tokens == 0):
            member.tokens = tokens
            member.lease = s.now + s.plan.lease_seconds
    s.progressed()
    return []


def departed(s: Scheduler, event: e.Departed) -> list[e.Command]:
    """Send on what is still wanted. Whatever the planned lane has become, a trajectory finds one of its version."""
    lane = s.lanes[event.lane]
    lane.heard_at = s.now
    arriving: dict[int, list[Member]] = {}
    bound = {event.lane}
    for trajectory_id, attempt, tokens in zip(event.trajectory_ids, event.attempts, event.tokens, strict=True):
        member = _current(s, trajectory_id, attempt, Status.RUNNING)
        if member is None or member.lane != event.lane:
            continue
        if member.destination >= 0:
            bound.add(member.destination)
        target = arrival(s, member)
        lane.let_go(trajectory_id)
        target.take(member)
        member.lane, member.tokens, member.lease = target.lane, tokens, s.now + s.plan.lease_seconds
        arriving.setdefault(target.lane, []).append(member)
    s.stir(*bound, *arriving)
    s.progressed()
    return [
        e.Attach(to, event.lane, tuple(m.trajectory_id for m in members), tuple(m.attempt for m in members))
        for to, members in sorted(arriving.items())
    ]


def finished(s: Scheduler, event: e.Finished) -> list[e.Command]:
    member = _current(s, event.trajectory_id, event.attempt, Status.RUNNING)
    if member is None or member.lane != event.lane:
        return []
    if s.schedule.splices is None and (event.version, event.spans) != (member.group.version, 1):
        raise InvariantError(
            f"C1: trajectory {event.trajectory_id} of version {member.group.version}"
            f" was sampled by version {event.version} in {event.spans} spans"
        )
    lane = s.lanes[event.lane]
    bound = [member.destination] if member.destination >= 0 else []
    if let_go(s, member) or bound:
        s.stir(event.lane, *bound)
    else:
        s.stir_nobody()
    lane.losses = 0
    lane.progress_at = lane.heard_at = s.progress_at = s.now
    s.ledger.finish(member)
    return [s.score_command(member)]


def generation_failed(s: Scheduler, event: e.GenerationFailed) -> list[e.Command]:
    member = _current(s, event.trajectory_id, event.attempt, Status.RUNNING)
    return s.generation_failed(member, event.reason) if member else []


def prompt_rejected(s: Scheduler, event: e.PromptRejected) -> list[e.Command]:
    group = s.ledger.live.get(event.group_id)
    return s.quarantine(group, event.reason) if group else []


def scored(s: Scheduler, event: e.Scored) -> list[e.Command]:
    s.stir_nobody()
    member = _current(s, event.trajectory_id, event.attempt, Status.FINISHED)
    if member:
        s.ledger.score(member)
        s.nothing_new = member.group.unscored > 0
        s.quarantined_in_a_row = 0
        s.progressed()
    return []


def score_failed(s: Scheduler, event: e.ScoreFailed) -> list[e.Command]:
    member = _current(s, event.trajectory_id, event.attempt, Status.FINISHED)
    if member is None:
        return []
    member.score_failures += 1
    if member.score_failures < MAX_SCORE_FAILURES:
        return [s.score_command(member)]
    return s.quarantine(member.group, f"reward of trajectory {event.trajectory_id}: {event.reason}")


def learner_ready(s: Scheduler, event: e.LearnerReady) -> list[e.Command]:
    if event.version != s.window.newest:
        s.stop("failed", f"the learner holds version {event.version}, the run is at version {s.window.newest}")
        return []
    s.learner = Health.READY
    s.progressed()
    return [s.train_command()] if s.window.training else []


def learner_lost(s: Scheduler, event: e.LearnerLost) -> list[e.Command]:
    """Restart it from the checkpoint of the newest version; the batch in training is handed out again."""
    s.learner = Health.STARTING
    s.learner_losses += 1
    if s.learner_losses > s.plan.max_attempts:
        s.stop("failed", f"the learner was lost {s.learner_losses} times in a row: {event.reason}")
        return []
    return [e.StartLearner(s.window.newest, event.reason)]


def trained(s: Scheduler, event: e.Trained) -> list[e.Command]:
    if not s.window.training or event.version != s.window.newest + 1:
        raise InvariantError(f"version {event.version} was published while version {s.window.newest + 1} was due")
    s.ledger.consume()
    s.window.newest = event.version
    s.live_versions.add(event.version)
    s.rebalance_due = True
    s.learner_losses = 0
    s.progressed()
    if event.report.consecutive_skips >= s.plan.max_consecutive_skips:
        words = f"the last {event.report.consecutive_skips} updates had a loss or gradient that is not finite"
        s.stop("failed", f"{words}; lower learner.learning_rate")
    if s.plan.evaluate_every and event.version % s.plan.evaluate_every == 0:
        s.ask_for_evaluation(event.version)
    return [*s.steering.saw(event)]


def learning(s: Scheduler, event: e.Learning) -> list[e.Command]:
    s.stir_nobody()
    if s.window.training and event.iteration == s.window.newest:
        s.progressed()
    return []


def marked(s: Scheduler, event: e.Marked) -> list[e.Command]:
    s.stir_nobody()
    if event.version in s.evaluations:
        s.progressed()
    return []


def evaluated(s: Scheduler, event: e.Evaluated) -> list[e.Command]:
    _evaluation_over(s, event.version)
    s.evaluations.pop(event.version, None)
    s.progressed()
    return []


def evaluation_failed(s: Scheduler, event: e.EvaluationFailed) -> list[e.Command]:
    _evaluation_over(s, event.version)
    if event.version in s.evaluations:
        s.stop("failed", f"the evaluation of version {event.version} failed: {event.reason}")
    return []


def _evaluation_over(s: Scheduler, version: int) -> None:
    where = s.evaluations.get(version)
    if where is not None:
        s.lanes[where].examined(version)


def nothing(s: Scheduler, event: e.Tick | e.Rebuilt) -> list[e.Command]:
    """Time passed; or a version was made anew from the batch that made it: consumed once, and in the weights once."""
    s.stir_nobody()
    return []


def suspended(s: Scheduler, event: e.Suspended) -> list[e.Command]:
    s.stir_nobody()
    excuse(s, event.seconds)
    return []


def ended(s: Scheduler, event: e.StopRequested | e.WorldFailed) -> list[e.Command]:
    s.stop("interrupted" if isinstance(event, e.StopRequested) else "failed", event.reason)
    return []


REACTIONS: dict[type, Callable[[Any, Any], list[e.Command]]] = {
    e.Opened: opened,
    e.LaneReady: lane_ready,
    e.LaneLost: lane_lost,
    e.VersionLoaded: version_loaded,
    e.Progress: progress,
    e.Departed: departed,
    e.Finished: finished,
    e.GenerationFailed: generation_failed,
    e.PromptRejected: prompt_rejected,
    e.Scored: scored,
    e.ScoreFailed: score_failed,
    e.LearnerReady: learner_ready,
    e.LearnerLost: learner_lost,
    e.Learning: learning,
    e.Trained: trained,
    e.Rebuilt: nothing,
    e.Marked: marked,
    e.Evaluated: evaluated,
    e.EvaluationFailed: evaluation_failed,
    e.Tick: nothing,
    e.Suspended: suspended,
    e.StopRequested: ended,
    e.WorldFailed: ended,
}


def react(s: Scheduler, event: e.Event) -> list[e.Command]:
    """Book an event, unless it comes from an earlier life of its lane."""
    if isinstance(event, OF_A_LIFE) and event.life is not None and event.life != s.lanes[event.lane].life:
        s.stir_nobody()
        return []
    return REACTIONS[type(event)](s, event)
