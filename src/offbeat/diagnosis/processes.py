"""Finders: how a run ended, and what became of its processes, its disk and its files. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from offbeat import events as e
from offbeat.diagnosis.case import Case
from offbeat.diagnosis.finding import Evidence, Finding
from offbeat.report.sections import duration

FULL = ("no space left", "disk is full", "make room")
LITTLE_ROOM = 64 << 20
STANDS_STILL = 15.0
"""Seconds without an event in a run that lives: it says something every second."""


def ending(case: Case) -> Iterator[Finding]:
    """Interrupted, failed, or gone without a word."""
    stop = case.last_stop
    if case.state == "crashed":
        last = case.run.records[-1] if case.run.records else None
        seen = [Evidence(f"the last event is {type(last.event).__name__}", last.now, seq=last.seq)] if last else []
        if case.place.last_words:
            seen.append(Evidence(f"the last words of a process: {case.place.last_words}"))
        sentence = "The main process ended without saying why (killed, out of memory, or the machine went down)"
        yield Finding("crashed", "error", f"{sentence}; nothing is lost.", f"go on with: {case.resume}", tuple(seen))
    elif stop and stop[1].outcome == "interrupted":
        sentence = f"The run was interrupted ({stop[1].reason}) and can go on."
        yield Finding("interrupted", "note", sentence, case.resume, (Evidence(stop[1].reason, seq=stop[0]),))
    elif stop and stop[1].outcome == "failed":
        sentence = f"The run gave up: {stop[1].reason}."
        yield Finding("failed", "error", sentence, f"mend it, then {case.resume}", (Evidence("stop", seq=stop[0]),))


def disk_full(case: Case) -> Iterator[Finding]:
    """Told by the end of the run, or by a disk that is full beside a run that ended without a word."""
    remedy = f"make room or lower run.keep_versions, then {case.resume}"
    for record in reversed(case.run.records):
        if isinstance(record.event, e.WorldFailed | e.LearnerLost | e.LaneLost):
            reason = record.event.reason.lower()
            if case.state == "failed" and any(words in reason for words in FULL):
                seen = (Evidence(record.event.reason, seq=record.seq),)
                yield Finding("disk-full", "error", "The disk is full.", remedy, seen)
                return
    free, size = case.place.free_bytes, case.place.checkpoint_bytes
    if free is None or case.state == "finished":
        return
    needed = max(LITTLE_ROOM, 2 * (size or 0))
    if free < needed:
        words = f"{free >> 20} MiB are free, {needed >> 20} MiB are wanted for the next versions"
        severity, sentence = ("error", "The disk is full.") if free < (size or 1 << 20) else (
            "warning", "The disk is almost full.")  # fmt: skip
        yield Finding("disk-full", severity, sentence, remedy, (Evidence(words, float(free)),))  # type: ignore[arg-type]


@dataclass
class _Lane:
    """`waits_for` says what a lane owes since `since`; empty while it owes nothing."""

    heard_at: float = 0.0
    waits_for: str = ""
    since: float = 0.0
    holds: set[int] = field(default_factory=set)
    losses: list[tuple[int, float, str]] = field(default_factory=list)


def _lanes(case: Case) -> dict[int, _Lane]:
    lanes: dict[int, _Lane] = defaultdict(_Lane)
    for record in case.run.records:
        match record.event:
            case e.Opened():
                for lane in lanes.values():
                    lane.holds.clear()
            case e.Suspended(seconds=seconds):
                for lane in lanes.values():
                    lane.heard_at, lane.since = lane.heard_at + seconds, lane.since + seconds
            case e.Finished(lane=number):
                lanes[number].heard_at = record.now
            case e.LaneReady(lane=number) | e.VersionLoaded(lane=number):
                lanes[number].heard_at, lanes[number].waits_for = record.now, ""
            case e.Progress(lane=number, trajectory_ids=held):
                lanes[number].heard_at, lanes[number].holds = record.now, set(held)
            case e.LaneLost(lane=number, reason=reason, for_lane=None):
                lanes[number].losses.append((record.seq, record.now, reason))
            case _:
                pass
        for command in record.commands:
            if isinstance(command, e.StartLane):
                lanes[command.lane].waits_for, lanes[command.lane].since = "to come up", record.now
                if command.reason and not isinstance(record.event, e.LaneLost):
                    lanes[command.lane].losses.append((record.seq, record.now, command.reason))
            elif isinstance(command, e.LoadVersion):
                lanes[command.lane].waits_for = f"to load version {command.version}"
                lanes[command.lane].since = record.now
    return lanes


def lost_and_silent_lanes(case: Case) -> Iterator[Finding]:
    """Lanes that died or were replaced, and in a run that lives those of which nothing is heard."""
    lease = case.run.settings.run.lease_seconds
    remedy = "look into workers.log; where memory is short lower rollout.slots, rollout.cache_tokens or rollout.lanes"
    seen: tuple[Evidence, ...]
    for number, lane in sorted(_lanes(case).items()):
        if case.state == "running":
            owes, silent = case.now - lane.since, case.now - lane.heard_at
            if lane.waits_for and owes > lease:
                seen = (Evidence(f"waiting for lane {number} {lane.waits_for} for {duration(owes)}", owes),)
                yield Finding("lane-dead", "error", f"Lane {number} does not answer.", remedy, seen)
                continue
            if not lane.waits_for and lane.holds and silent > lease / 2:
                seen = (Evidence(f"{len(lane.holds)} responses, nothing heard for {duration(silent)}", silent),)
                sentence = f"Lane {number} is silent; it is replaced when its lease of {lease:g} s ends."
                yield Finding("lane-silent", "warning", sentence, remedy, seen)
        if lane.losses:
            shown = lane.losses[-3:]
            seen = tuple(Evidence(f"at {duration(now)}: {reason}", now, seq=seq) for seq, now, reason in shown)
            many = "once" if len(lane.losses) == 1 else f"{len(lane.losses)} times"
            sentence = f"Lane {number} was lost {many}; what it held was sampled again."
            yield Finding("lane-lost", "warning" if len(lane.losses) > 2 else "note", sentence, remedy, seen)


def learner_trouble(case: Case) -> Iterator[Finding]:
    """Lost, or at a batch for much longer than before."""
    lost = [(r.seq, r.now, r.event.reason) for r in case.run.records if isinstance(r.event, e.LearnerLost)]
    remedy = "look into workers.log; where memory is short lower learner.micro_batch_tokens"
    seen: tuple[Evidence, ...]
    if lost:
        seen = tuple(Evidence(f"at {duration(now)}: {reason}", now, seq=seq) for seq, now, reason in lost[-3:])
        many = "once" if len(lost) == 1 else f"{len(lost)} times"
        sentence = f"The learner was lost {many}; its batch was done again from the version before."
        yield Finding("learner-lost", "warning" if len(lost) > 2 else "note", sentence, remedy, seen)
    since = case.timing.training_since
    if case.state != "running" or since is None:
        return
    usual = [report.train_seconds + report.publish_seconds for report in case.reports]
    longest = max(3 * median(usual), 30.0) if usual else case.run.settings.run.stall_seconds / 2
    if case.now - since > longest:
        took = f"at iteration {len(case.reports)} for {duration(case.now - since)}"
        seen = (Evidence(took + (f", usual are {duration(median(usual))}" if usual else ""), case.now - since),)
        sentence = "The learner takes much longer than before."
        yield Finding("learner-silent", "warning", sentence, "look at its process; raise run.stall_seconds where a step"
                      " needs that long", seen)  # fmt: skip


def stood_still(case: Case) -> Iterator[Finding]:
    """The main process heard nobody: for a while, or now."""
    seen: tuple[Evidence, ...]
    if case.state == "running" and case.place.silent_seconds > STANDS_STILL:
        seen = (Evidence("seconds since the last event", case.place.silent_seconds),)
        sentence = f"The main process lives but has said nothing for {duration(case.place.silent_seconds)}."
        yield Finding("main-silent", "error", sentence, "wake it (kill -CONT), or end it and resume", seen)
    pauses = [(r.seq, r.event.seconds) for r in case.run.records if isinstance(r.event, e.Suspended)]
    lost = sum(seconds for _, seconds in pauses)
    if lost > max(0.05 * case.run.wall_seconds, 10.0):
        seen = tuple(Evidence(f"{seconds:.0f} s", seconds, seq=seq) for seq, seconds in pauses[-3:])
        sentence = f"The main process stood still for {duration(lost)} in all; nobody was blamed for that time."
        remedy = "look for a disk that blocks, a machine that sleeps, or too few cores"
        yield Finding("stood-still", "note", sentence, remedy, seen)


def files(case: Case) -> Iterator[Finding]:
    """Damage of the log and of the newest version, and versions that were made anew."""
    if case.place.log_damage:
        sentence = "The run log is damaged; what is told here is from the part before the damage."
        remedy = "put run.sqlite back from a copy; a run with a damaged log is not resumed"
        yield Finding("log-damaged", "error", sentence, remedy, (Evidence(case.place.log_damage),))
    if case.place.checkpoint_damage:
        version = len(case.reports)
        sentence = f"The files of version {version}, the newest, are damaged."
        remedy = f"{case.resume} makes it anew from version {version - 1}, if that is whole"
        yield Finding("checkpoint-damaged", "error", sentence, remedy, (Evidence(case.place.checkpoint_damage),))
    for seq, event in case.story.rebuilt:
        sentence = f"Version {event.version} was damaged and made anew from version {event.version - 1}."
        remedy = "look at the disk: what was written and synced was not there any more"
        yield Finding("checkpoint-rebuilt", "note", sentence, remedy, (Evidence(event.reason, seq=seq),))
