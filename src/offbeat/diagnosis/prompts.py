"""Finders: prompts that fail, batches that teach nothing, responses that run away, rewards that are slow. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from statistics import fmean, median

from offbeat import events as e
from offbeat.diagnosis.case import Case
from offbeat.diagnosis.finding import Evidence, Finding
from offbeat.diagnosis.timing import FEWEST

NAMED = 5
RECENT = 20
"""Iterations, for shares of groups."""
SAMPLE = 200
"""Responses compared at the beginning and at the end."""
DEADLY_LOSSES = 3


def poison_prompts(case: Case) -> Iterator[Finding]:
    """Prompts that were quarantined, or whose responses or rewards fail again and again."""
    failures: dict[int, list[Evidence]] = defaultdict(list)
    prompt_of = {group: asked.prompt_id for group, asked in case.story.first_dispatch.items()}
    size = case.run.group_size
    for record in case.run.records:
        match record.event:
            case e.GenerationFailed() | e.ScoreFailed():
                event = record.event
                prompt = prompt_of.get(event.trajectory_id // size, -1)
                what = "reward" if isinstance(event, e.ScoreFailed) else "response"
                words = f"prompt {prompt}: {what} of trajectory {event.trajectory_id}: {event.reason}"
                failures[prompt].append(Evidence(words, seq=record.seq))
            case _:
                pass
    gone = case.story.quarantines
    remedy = (
        "mend or remove the prompt or its reward; a prompt has run.max_attempts tries, a reward task.reward_seconds"
    )
    if gone:
        reasons = Counter(command.reason for _, _, command in gone)
        seen = tuple(
            Evidence(f"prompt {prompt_of.get(command.group_id, -1)}: {command.reason}", seq=seq)
            for seq, _, command in gone[-NAMED:]
        )
        most, count = reasons.most_common(1)[0]
        sentence = f"{len(gone)} prompts were quarantined and not trained on; most often ({count}): {most}."
        yield Finding("poison-prompt", "warning", sentence, remedy, seen)
    quarantined = {prompt_of.get(command.group_id, -1) for _, _, command in gone}
    repeated = {prompt: seen for prompt, seen in failures.items() if len(seen) > 1 and prompt not in quarantined}
    if repeated:
        worst = sorted(repeated, key=lambda prompt: -len(repeated[prompt]))[:NAMED]
        sentence = f"{len(repeated)} prompts fail again and again."
        yield Finding("failing-prompt", "note", sentence, remedy, tuple(repeated[prompt][-1] for prompt in worst))


def deadly_prompts(case: Case) -> Iterator[Finding]:
    """Prompts that a lane held each time it was lost, where it was lost so often that this is no chance."""
    held: dict[int, set[int]] = defaultdict(set)
    suspects: list[set[int]] = []
    size = case.run.group_size
    prompt_of = {group: asked.prompt_id for group, asked in case.story.first_dispatch.items()}
    for record in case.run.records:
        match record.event:
            case e.Progress(lane=lane, trajectory_ids=ids):
                held[lane] = {prompt_of.get(i // size, -1) for i in ids}
            case e.LaneLost(lane=lane, for_lane=None) if held[lane]:
                suspects.append(held.pop(lane))
            case _:
                pass
    always = set.intersection(*suspects) if len(suspects) >= DEADLY_LOSSES else set()
    if 0 < len(always) <= NAMED and len(always) < max(map(len, suspects)):
        names = ", ".join(map(str, sorted(always)))
        seen = (Evidence(f"held at each of {len(suspects)} losses of lanes", float(len(suspects))),)
        sentence = f"Prompt {names} was being answered each time a lane was lost: it may be what kills them."
        yield Finding("deadly-prompt", "warning", sentence, "remove the prompt and see whether lanes still die", seen)


def zero_advantage(case: Case) -> Iterator[Finding]:
    """Groups whose responses all have the same reward teach nothing."""
    reports = case.reports[-RECENT:]
    groups = case.run.settings.schedule.train_batch_size // case.run.group_size
    if len(reports) < FEWEST:
        return
    share = fmean(report.zero_advantage_groups / groups for report in reports)
    if share < 0.7:
        return
    reward = fmean(report.reward_mean for report in reports)
    last = reports[-1].iteration
    easy = reward > 0.5
    seen = (
        Evidence(f"{share:.0%} of the groups of the newest {len(reports)} iterations", share, last),
        Evidence(f"mean reward {reward:.3f}", reward, last),
    )
    sentence = f"{share:.0%} of the groups teach nothing: their prompts are too {'easy' if easy else 'hard'}."
    remedy = f"take {'harder' if easy else 'easier'} prompts or raise schedule.group_size"
    yield Finding("zero-advantage", "warning", sentence, remedy, seen)


def runaway_lengths(case: Case) -> Iterator[Finding]:
    """Responses grow towards the limit, or most are cut off at it."""
    ended = [heard.event for heard in sorted(case.story.accepted.values(), key=lambda heard: heard.seq)]
    if len(ended) < max(2 * SAMPLE, FEWEST * case.run.settings.schedule.train_batch_size):
        return  # of the first few batches the short responses are the first to end
    first, last = ended[:SAMPLE], ended[-SAMPLE:]
    before, after = (fmean(event.tokens for event in part) for part in (first, last))
    cut = fmean(event.finish_reason == "length" for event in last)
    limit = case.run.settings.rollout.max_new_tokens
    seen = (
        Evidence(f"mean of the first {SAMPLE} responses {before:.0f} tokens, of the last {after:.0f}", after / before),
        Evidence(f"{cut:.0%} of the last {SAMPLE} were cut off at rollout.max_new_tokens = {limit}", cut),
    )
    if after > 2 * before and cut > 0.2:
        sentence = f"Responses run away: {after / before:.1f} times as long as at the beginning."
        remedy = "let the reward ask for an end, use learner.aggregation = sequence, or lower rollout.max_new_tokens"
        yield Finding("length-runaway", "warning", sentence, remedy, seen)
    elif cut > 0.8 and fmean(event.finish_reason == "length" for event in first) < cut:
        sentence = "Most responses are cut off before they end."
        yield Finding("cut-off", "warning", sentence, "raise rollout.max_new_tokens and rollout.context", seen[1:])


def slow_reward(case: Case) -> Iterator[Finding]:
    """The learner waits for rewards of responses that are there, or rewards run out of time."""
    timing = case.timing
    share = timing.shares.get("reward", 0.0)
    seen: list[Evidence] = []
    if share > 0.15:
        words = f"in {share:.0%} of the newest {timing.iterations} iterations a batch was finished but not scored"
        seen.append(Evidence(words, share, timing.first))
        waits = timing.score_seconds
        seen.append(Evidence(f"a response waits {median(waits):.2f} s for its reward (median)", median(waits)))
    late = [r for r in case.run.records if isinstance(r.event, e.ScoreFailed) and "out of time" in r.event.reason]
    if len(late) > 1:
        words = f"{len(late)} rewards ran out of time ({case.run.settings.task.reward_seconds:g} s)"
        seen.append(Evidence(words, float(len(late)), seq=late[-1].seq))
    if seen:
        sentence = "The reward function is slow: " + ("learning waits for it." if share > 0.15 else "calls time out.")
        yield Finding("slow-reward", "warning", sentence, "make it faster, or raise task.reward_seconds", tuple(seen))
