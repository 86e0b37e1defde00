"""The laws a run must have kept, one function each, with evidence for every breach.

*C1* one version samples a trajectory; *C2* nothing issued is lost or consumed twice; *C3* nothing consumed is staler
than the bound. Beside them: conservation, the order of versions, rewards, payloads. What holds without C1 is in
`splices.py`.
Every function reads the story and yields one `Breach` for each thing found. None knows the scheduler.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator

from offbeat.report.laws import Breach, promised
from offbeat.report.prompt_checks import prompts_kept, reports_agree
from offbeat.report.read import PayloadFacts, Run
from offbeat.report.splices import of_several_versions, spliced_soundly
from offbeat.report.story import Consumption, Story


def c1_one_version(run: Run, story: Story) -> Iterator[Breach]:
    """Every attempt at a trajectory, every Finished and every stored span is of the version it was issued under.

    Where C1 is not promised: trajectories of several versions are counted, once each, and nothing else.
    """
    if "c1" not in promised(run.settings.schedule.name):
        yield from of_several_versions(run, story)
        return
    by_trajectory = defaultdict(list)
    for tries in story.dispatches.values():
        for dispatch in tries:
            by_trajectory[dispatch.trajectory_id].append(dispatch)
    for trajectory_id, tries in by_trajectory.items():
        issued = story.first_dispatch[tries[0].group_id]
        other = next((d for d in tries if d.version != issued.version), None)
        if other:
            yield Breach(
                "c1",
                f"trajectory {trajectory_id}: its group was issued under version {issued.version} (seq {issued.seq}),"
                f" attempt {other.attempt} was dispatched under version {other.version} (seq {other.seq})",
            )
    for heard in story.finishes:
        event = heard.event
        what = f"trajectory {event.trajectory_id}, attempt {event.attempt}: finished at seq {heard.seq}"
        asked = story.dispatches.get((event.trajectory_id, event.attempt))
        if not asked:
            yield Breach("c1", f"{what} under version {event.version}, but no Generate names this attempt")
        elif event.version != asked[0].version:
            yield Breach(
                "c1", f"{what} under version {event.version}, asked for {asked[0].version} (seq {asked[0].seq})"
            )
        elif event.spans != 1:
            yield Breach("c1", f"{what} in {event.spans} spans, one is promised")
    yield from _c1_spans(run, story)


def _c1_spans(run: Run, story: Story) -> Iterator[Breach]:
    schedule = run.settings.schedule.name
    for (trajectory_id, attempt), payload in run.payloads.items():
        what = f"trajectory {trajectory_id}, attempt {attempt}: its payload"
        asked = story.dispatches.get((trajectory_id, attempt))
        if not asked:
            yield Breach("c1", f"{what} is stored, but no Generate names this attempt")
        elif any(version != asked[0].version for version in payload.span_versions):
            yield Breach(
                "c1",
                f"{what} has spans of versions {list(payload.span_versions)}, asked for {asked[0].version}"
                f" (seq {asked[0].seq})",
            )
        elif len(payload.span_versions) != 1:
            yield Breach("c1", f"{what} has {len(payload.span_versions)} spans; schedule {schedule} promises one")


def unsettled(run: Run, story: Story) -> dict[int, str]:
    """Issued groups that are neither consumed, quarantined nor evicted: why each is lost, empty if a resume still
    holds it."""
    settled = story.consumed_groups | story.quarantined_groups | story.evicted_groups
    return {group_id: _why_lost(run, story, group_id) for group_id in story.first_dispatch if group_id not in settled}


def c2_lost(run: Run, story: Story) -> Iterator[Breach]:
    """What was issued is consumed, quarantined or still recoverable by a resume; nothing is left when finished."""
    for group_id, why in unsettled(run, story).items():
        if why:
            issued = story.first_dispatch[group_id]
            where = f"group {group_id}, issued at seq {issued.seq} under version {issued.version}"
            yield Breach("lost", f"{where}: {why}", story.group_size)
    yield from _evicted_for_good(run, story)


def _evicted_for_good(run: Run, story: Story) -> Iterator[Breach]:
    """Only a run set to evict may do so, and it must issue the prompt again."""
    asked_for = run.settings.schedule.at_bound == "evict"
    issued = Counter(dispatch.prompt_id for dispatch in story.first_dispatch.values())
    for seq, command in story.evictions:
        issued[command.prompt_id] -= 1
        what = f"group {command.group_id}, prompt {command.prompt_id}: evicted at seq {seq}"
        if not asked_for:
            yield Breach("lost", f"{what}, though schedule.at_bound is drain", story.group_size)
        elif story.outcome == "finished" and issued[command.prompt_id] < 1:
            yield Breach("lost", f"{what} and its prompt never issued again", story.group_size)


def _why_lost(run: Run, story: Story, group_id: int) -> str:
    """Why a group that is neither consumed nor quarantined is not live either; empty if it is live."""
    if story.outcome == "finished":
        return "neither consumed nor quarantined in a finished run"
    left_out = _left_out_of_batch(story, group_id)
    if left_out:
        return left_out
    published, bound = len(story.publishes), run.settings.schedule.staleness_bound
    bounded = "c3" in promised(run.settings.schedule.name)
    if bounded and published - story.first_dispatch[group_id].version > bound:
        return f"can never be consumed, the next batch is of iteration {published} (bound {bound})"
    for trajectory_id in story.members(group_id):
        heard = story.accepted.get(trajectory_id)
        if heard and (trajectory_id, heard.event.attempt) not in run.payloads:
            return f"trajectory {trajectory_id} finished at seq {heard.seq}, but no payload of it is stored"
    return ""


def _left_out_of_batch(story: Story, group_id: int) -> str:
    """Handed to the learner once, and not part of the batch when the same iteration was commanded again."""
    for iteration, commanded in story.trains_of.items():
        named = [(seq, group_id in train.group_ids) for seq, train in commanded]
        if any(inside for _, inside in named) and not named[-1][1]:
            return f"in a Train of iteration {iteration} once, left out of the one at seq {named[-1][0]}"
    return ""


def c2_consumed_twice(run: Run, story: Story) -> Iterator[Breach]:
    """No group is in two committed iterations, nor twice in one."""
    where: dict[int, Consumption] = {}
    for batch in story.consumptions:
        for group_id in batch.train.group_ids:
            earlier = where.setdefault(group_id, batch)
            if earlier is not batch:
                yield Breach(
                    "consumed_twice",
                    f"group {group_id}: consumed by iteration {earlier.iteration} (Trained at seq"
                    f" {earlier.trained_seq}) and by iteration {batch.iteration} (seq {batch.trained_seq})",
                    story.group_size,
                )
        for group_id in sorted({g for g in batch.train.group_ids if batch.train.group_ids.count(g) > 1}):
            text = f"group {group_id}: more than once in the Train of iteration {batch.iteration}"
            yield Breach("consumed_twice", f"{text} (seq {batch.train_seq})", story.group_size)


def c3_bounded_staleness(run: Run, story: Story) -> Iterator[Breach]:
    """0 <= iteration of the Train - version that sampled the first token <= bound."""
    bound = run.settings.schedule.staleness_bound
    for batch in story.consumptions:
        for group_id, attempts in zip(batch.train.group_ids, batch.train.attempts, strict=False):
            for trajectory_id, attempt in zip(story.members(group_id), attempts, strict=False):
                asked = story.dispatches.get((trajectory_id, attempt))
                what = f"trajectory {trajectory_id}, attempt {attempt}, iteration {batch.iteration}"
                if not asked:
                    yield Breach("c3", f"{what} (seq {batch.train_seq}): no Generate names this attempt")
                    continue
                version = story.version_of(trajectory_id, asked[0])
                staleness = batch.iteration - version
                if not 0 <= staleness <= bound:
                    yield Breach(
                        "c3",
                        f"{what} (seq {batch.train_seq}): staleness {staleness} is outside 0..{bound}, it was"
                        f" generated under version {version} (asked for at seq {asked[0].seq})",
                    )


def conservation(run: Run, story: Story) -> Iterator[Breach]:
    """Every issued group is in exactly one place, ids have no gap, and a trajectory runs once at a time."""
    issued, consumed, quarantined = set(story.first_dispatch), story.consumed_groups, story.quarantined_groups
    evicted = story.evicted_groups
    for group_id in sorted((consumed & quarantined) | (consumed & evicted) | (quarantined & evicted)):
        yield Breach("conservation", f"group {group_id}: consumed, quarantined or evicted: twice", story.group_size)
    for group_id in sorted((consumed | quarantined) - issued):
        yield Breach("conservation", f"group {group_id}: consumed or quarantined, but never issued", story.group_size)
    for group_id in sorted(set(range(max(issued, default=-1) + 1)) - issued):
        yield Breach("conservation", f"group {group_id}: skipped, though later groups were issued", story.group_size)
    for tries in story.dispatches.values():
        first = tries[0]
        if first.trajectory_id not in story.members(first.group_id):
            text = f"trajectory {first.trajectory_id}: dispatched for group {first.group_id} (seq {first.seq})"
            yield Breach("conservation", f"{text}, to which it does not belong")
        for again in tries[1:]:
            text = f"trajectory {first.trajectory_id}: attempt {first.attempt} dispatched at seq {first.seq}"
            yield Breach("conservation", f"{text} and again at seq {again.seq}")
    for text in story.astray:
        yield Breach("conservation", text)
    for dispatch, reason in story.repeated:
        text = f"trajectory {dispatch.trajectory_id}: attempt {dispatch.attempt} dispatched at seq {dispatch.seq}"
        yield Breach("conservation", f"{text}, though {reason}")


def versions_in_order(run: Run, story: Story) -> Iterator[Breach]:
    """Versions 1, 2, 3... each once, each from a commanded batch of full size that its report agrees with."""
    for position, (seq, _, trained) in enumerate(story.publishes, start=1):
        if trained.version != position:
            yield Breach("versions", f"seq {seq}: version {trained.version} was published where {position} was due")
            break
    for seq, trained in story.unexplained:
        yield Breach("versions", f"seq {seq}: version {trained.version} was published without a Train command")
    size = run.settings.schedule.train_batch_size
    for batch in story.consumptions:
        report, groups = batch.trained.report, len(batch.train.group_ids)
        what = f"iteration {batch.iteration} (Train at seq {batch.train_seq}, Trained at seq {batch.trained_seq})"
        if groups * story.group_size != size:
            yield Breach("versions", f"{what}: {groups * story.group_size} trajectories, a batch has {size}")
        if (report.iteration, report.trajectories) != (batch.iteration, groups * story.group_size):
            yield Breach(
                "versions",
                f"{what}: the learner reports {report.trajectories} trajectories for iteration {report.iteration}",
            )
    published_at = {trained.version: seq for seq, _, trained in story.publishes} | {0: -1}
    for tries in story.dispatches.values():
        dispatch = tries[0]
        if published_at.get(dispatch.version, dispatch.seq + 1) > dispatch.seq:
            text = f"trajectory {dispatch.trajectory_id}: dispatched at seq {dispatch.seq} under version"
            yield Breach("versions", f"{text} {dispatch.version}, which was not published yet")


def rewards_scored(run: Run, story: Story) -> Iterator[Breach]:
    """Every consumed trajectory is the accepted attempt and has one finite reward."""
    for batch in story.consumptions:
        for group_id, attempts in zip(batch.train.group_ids, batch.train.attempts, strict=False):
            for trajectory_id, attempt in zip(story.members(group_id), attempts, strict=False):
                what = f"trajectory {trajectory_id}, attempt {attempt}, iteration {batch.iteration}"
                heard = story.accepted.get(trajectory_id)
                if heard is None or heard.event.attempt != attempt or heard.seq > batch.train_seq:
                    accepted = f"attempt {heard.event.attempt} at seq {heard.seq}" if heard else "none"
                    yield Breach("rewards", f"{what} (seq {batch.train_seq}): accepted was {accepted}")
                    continue
                scores = story.scores.get(trajectory_id, [])
                if not scores or scores[0][0] > batch.train_seq:
                    yield Breach("rewards", f"{what} (seq {batch.train_seq}): had no accepted Scored")
                elif len({reward for _, reward in scores}) > 1 or not math.isfinite(scores[0][1]):
                    yield Breach("rewards", f"{what}: scored {scores}")
        if len(batch.train.attempts) != len(batch.train.group_ids) or any(
            len(attempts) != story.group_size for attempts in batch.train.attempts
        ):
            yield Breach("rewards", f"iteration {batch.iteration} (seq {batch.train_seq}): attempts do not fit groups")


def payloads_sound(run: Run, story: Story) -> Iterator[Breach]:
    """What was trained on is stored; what is stored of an accepted attempt is what Finished and Scored announced."""
    for batch in story.consumptions:
        for group_id, attempts in zip(batch.train.group_ids, batch.train.attempts, strict=False):
            for trajectory_id, attempt in zip(story.members(group_id), attempts, strict=False):
                if (trajectory_id, attempt) not in run.payloads:
                    what = f"trajectory {trajectory_id}, attempt {attempt}, iteration {batch.iteration}"
                    yield Breach("payloads", f"{what} (seq {batch.train_seq}): its payload is not stored")
                elif run.payloads[trajectory_id, attempt].reward is None:
                    what = f"trajectory {trajectory_id}, attempt {attempt}, iteration {batch.iteration}"
                    yield Breach("payloads", f"{what} (seq {batch.train_seq}): no reward is stored with its payload")
    for trajectory_id, heard in story.accepted.items():
        payload = run.payloads.get((trajectory_id, heard.event.attempt))
        if payload is None:
            continue
        scores = story.scores.get(trajectory_id, [])
        for problem in _payload_problems(payload, heard.event.tokens, heard.event.finish_reason):
            yield Breach("payloads", f"trajectory {trajectory_id} (Finished at seq {heard.seq}): {problem}")
        if payload.named != (trajectory_id, heard.event.attempt):
            yield Breach("payloads", f"trajectory {trajectory_id}: its payload calls itself {payload.named}")
        if scores and payload.reward is not None and payload.reward != scores[0][1]:
            text = f"trajectory {trajectory_id}: scored {scores[0][1]} at seq {scores[0][0]}"
            yield Breach("payloads", f"{text}, stored is {payload.reward}")


def _payload_problems(payload: PayloadFacts, tokens: int, finish_reason: str) -> Iterator[str]:
    if payload.tokens != tokens:
        yield f"{tokens} tokens announced, {payload.tokens} stored"
    if payload.logprobs != payload.tokens:
        yield f"{payload.tokens} tokens, but {payload.logprobs} behaviour log-probs"
    if not payload.logprobs_sound:
        yield "a behaviour log-prob is not a finite number <= 0"
    if payload.finish_reason != finish_reason:
        yield f"announced as {finish_reason!r}, stored as {payload.finish_reason!r}"


CHECKS = (
    c1_one_version,
    c2_lost,
    c2_consumed_twice,
    c3_bounded_staleness,
    conservation,
    versions_in_order,
    rewards_scored,
    payloads_sound,
    spliced_soundly,
    prompts_kept,
    reports_agree,
)
