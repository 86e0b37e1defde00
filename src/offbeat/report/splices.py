"""Schedules that do not promise C1: which trajectories several versions sampled, and what must hold even so.

*Order of versions*: a trajectory begins no earlier than asked, never goes back to an older version, and every one of
its spans is of a version that was published and asked for, by its Generate or by a Continue to its lane.
What may be of several versions is counted under `c1`; real damage falls under laws that are always promised.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from offbeat.report.laws import Breach, promised
from offbeat.report.read import PayloadFacts, Run
from offbeat.report.story import Dispatch, Heard, Story


def of_several_versions(run: Run, story: Story) -> Iterator[Breach]:
    """One breach of C1 for each trajectory that has an attempt of several versions."""
    found: dict[int, str] = {}
    for heard in story.finishes:
        event = heard.event
        what = f"trajectory {event.trajectory_id}, attempt {event.attempt} (Finished at seq {heard.seq})"
        payload = run.payloads.get((event.trajectory_id, event.attempt))
        if payload and len(set(payload.span_versions)) > 1:
            found.setdefault(event.trajectory_id, f"{what}: spans of versions {list(payload.span_versions)}")
        elif event.spans > 1:
            found.setdefault(event.trajectory_id, f"{what}: {event.spans} spans, the first of version {event.version}")
    for evidence in found.values():
        yield Breach("c1", evidence)


def spliced_soundly(run: Run, story: Story) -> Iterator[Breach]:
    """What must hold of a run whose schedule gives up C1; nothing to say of one whose schedule keeps it."""
    if "c1" in promised(run.settings.schedule.name):
        return
    yield from _restarts(story)
    for trajectory_id, attempt in run.payloads:
        if (trajectory_id, attempt) not in story.dispatches:
            text = f"trajectory {trajectory_id}, attempt {attempt}: its payload is stored"
            yield Breach("conservation", f"{text}, but no Generate names this attempt")
    published_at = {trained.version: seq for seq, _, trained in story.publishes} | {0: -1}
    for heard in story.finishes:
        event = heard.event
        key = (event.trajectory_id, event.attempt)
        what = f"trajectory {event.trajectory_id}, attempt {event.attempt}, finished at seq {heard.seq}"
        asked = story.dispatches.get(key)
        if not asked:
            yield Breach("conservation", f"{what}: no Generate names this attempt")
            continue
        payload = run.payloads.get(key)
        for problem in _out_of_order(heard, asked[0], payload):
            yield Breach("versions", f"{what}: {problem}")
        for problem in _not_asked_for(story, heard, asked[0], payload, published_at):
            yield Breach("versions", f"{what}: {problem}")
        for problem in _not_as_announced(heard, payload):
            yield Breach("payloads", f"{what}: {problem}")


def _restarts(story: Story) -> Iterator[Breach]:
    """A first dispatch is of its group's version, a restart of no older one than the attempt before."""
    by_trajectory: dict[int, list[Dispatch]] = defaultdict(list)
    for tries in story.dispatches.values():
        by_trajectory[tries[0].trajectory_id] += tries
    for trajectory_id, tries in by_trajectory.items():
        tries.sort(key=lambda dispatch: dispatch.seq)
        issued = story.first_dispatch[tries[0].group_id]
        if tries[0].version != issued.version:
            text = f"trajectory {trajectory_id}: first dispatched under version {tries[0].version} (seq {tries[0].seq})"
            yield Breach("versions", f"{text}, its group was issued under {issued.version} (seq {issued.seq})")
        for earlier, later in pairwise(tries):
            if later.version < earlier.version:
                yield Breach(
                    "versions",
                    f"trajectory {trajectory_id}: attempt {later.attempt} was restarted under version {later.version}"
                    f" (seq {later.seq}), older than {earlier.version} (seq {earlier.seq})",
                )


def _out_of_order(heard: Heard, asked: Dispatch, payload: PayloadFacts | None) -> Iterator[str]:
    if heard.event.version < asked.version:
        yield f"its first token is of version {heard.event.version}, asked for {asked.version} (seq {asked.seq})"
    if payload and any(later < earlier for earlier, later in pairwise(payload.span_versions)):
        yield f"its spans go back to an older version: {list(payload.span_versions)}"


def _not_asked_for(
    story: Story, heard: Heard, asked: Dispatch, payload: PayloadFacts | None, published_at: dict[int, int]
) -> Iterator[str]:
    """Of each version that sampled: was it published, and did a command to the lane name it while this ran?"""
    continues = story.continues[heard.event.lane]
    first, last = (bisect_left(continues, (seq, -1)) for seq in (asked.seq, heard.seq))
    named = {asked.version} | {version for _, version in continues[first:last]}
    for version in sorted({heard.event.version, *(payload.span_versions if payload else ())}):
        if published_at.get(version, heard.seq) >= heard.seq:
            yield f"sampled by version {version}, which was not published yet"
        elif version not in named:
            yield f"sampled by version {version}, which neither its Generate (seq {asked.seq}) nor a Continue named"


def _not_as_announced(heard: Heard, payload: PayloadFacts | None) -> Iterator[str]:
    if payload is None:
        return
    versions, event = payload.span_versions, heard.event
    if len(versions) != event.spans:
        yield f"{event.spans} spans announced, {len(versions)} stored"
    if versions and versions[0] != event.version:
        yield f"announced as begun under version {event.version}, its first stored span is of {versions[0]}"
