"""Everything out of the ordinary in a run, in order: losses, restarts, failures, quarantines, levers moved, resumes,
the end.

What one event made the scheduler restart or abort on a lane under a version is one line, however many trajectories.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from offbeat import events as e
from offbeat.report.read import Record, Run

NAMED = 8
"""Trajectories a line names; of more it gives the number."""

Incident = tuple[float, int, str, str]


def incident_rows(run: Run) -> list[Incident]:
    """(run time in seconds, seq, what, detail) of every incident, in order."""
    rows: list[Incident] = []
    for record in run.records:
        found = [what for what in (_happened(record.event),) if what]
        rows += [(record.now, record.seq, *what) for what in (*found, *_done(record))]
    return rows


def _happened(event: e.Event) -> tuple[str, str] | None:
    match event:
        case e.Opened(session=session) if session > 0:
            return "resumed", f"session {session}"
        case e.LaneLost():
            return "lane lost", f"lane {event.lane}: {event.reason}"
        case e.Suspended():
            return "stood still", f"the main process, for {event.seconds:.0f} s; nobody is blamed for that time"
        case e.LearnerLost():
            return "learner lost", event.reason
        case e.Rebuilt():
            return "rebuilt", f"version {event.version} from the one before it: {event.reason}"
        case e.GenerationFailed():
            return "generation failed", f"trajectory {event.trajectory_id}, attempt {event.attempt}: {event.reason}"
        case e.ScoreFailed():
            return "score failed", f"trajectory {event.trajectory_id}, attempt {event.attempt}: {event.reason}"
        case e.EvaluationFailed():
            return "evaluation failed", f"version {event.version}: {event.reason}"
        case e.WorldFailed():
            return "failed", event.reason
        case e.StopRequested():
            return "stop asked for", event.reason
        case e.Trained() if event.report.skipped_updates:
            return "update skipped", f"iteration {event.report.iteration}: loss or gradient not finite"
    return None


def _done(record: Record) -> Iterable[tuple[str, str]]:
    aborted: dict[int, list[int]] = {}
    restarted: dict[tuple[int, int], list[int]] = {}
    others: list[tuple[str, str]] = []
    for command in record.commands:
        match command:
            case e.Generate(lane=lane, version=version):
                tries = zip(command.trajectory_ids, command.attempts, strict=True)
                restarted.setdefault((lane, version), []).extend(t for t, attempt in tries if attempt > 0)
            case e.Abort(lane=lane) if not isinstance(record.event, e.PromptRejected):
                aborted.setdefault(lane, []).extend(command.trajectory_ids)
            case e.Quarantine():
                others.append(("quarantined", f"prompt group {command.group_id}: {command.reason}"))
            case e.Steer():
                others.append(("autopilot", command.reason))
            case e.Evict():
                others.append(
                    ("evicted", f"group {command.group_id} of version {command.version}; its prompt is queued again")
                )
            case e.Stop():
                others.append((f"stop: {command.outcome}", command.reason))
            case _:
                pass
    for lane, ids in aborted.items():
        yield "aborted", f"{_names(ids)} on lane {lane}"
    for (lane, version), ids in restarted.items():
        if ids:
            yield "restarted", f"{_names(ids)} on lane {lane} under version {version}"
    yield from others


def _names(ids: Sequence[int]) -> str:
    if len(ids) == 1:
        return f"trajectory {ids[0]}"
    if len(ids) <= NAMED:
        return f"trajectories {', '.join(map(str, ids))}"
    return f"{len(ids)} trajectories, {min(ids)} to {max(ids)},"
