"""What one run of a comparison was worth, from its log alone, over its steady part.

*Steady part*: from the end of the warm-up iterations to the last iteration before work runs out (a run issues no
more than it will consume, so its last K + 1 batches find emptier slots). Definitions: DORA, arXiv 2604.26256 §5.1.
Knows no schedule but by name and judges nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean

from offbeat import events as e
from offbeat.errors import RunDirectoryError
from offbeat.report.read import Run
from offbeat.report.story import Consumption, Story, tell

Interval = tuple[float, float]
RECENT = 8
LAST_SHARE = 0.1
"""Iterations at the end whose mean reward is `reward_final`."""


@dataclass(frozen=True)
class Prompts:
    """Of one data set: groups issued and trained on, mean response length of all that were finished and of those
    trained on (None where there are none). A schedule that favours short responses shows as a lower `trained_length`.
    """

    issued: int
    trained: int
    finished_length: float | None
    trained_length: float | None


@dataclass(frozen=True)
class Measures:
    """Of the steady part, unless it says otherwise; seconds of wall clock, lengths in tokens.

    iteration_seconds: from one publish to the next. learner_seconds: of it, training and publishing.
    rollout_only_seconds: the rest, not overlapped by training. bound: trajectories a second if the learner never
    waited, TBS / learner_seconds. slots_busy: share of slot time spent decoding (standing still is not decoding).
    bubble: mean over batches of (longest - mean) / longest response. staleness, reward_final, spans_per_trajectory,
    evicted: whole run. trained_length, finished_length: mean response of what was trained on and of all finished.
    evicted: trajectories given up for their age, 0 unless the run was set to evict. datasets: by name, whole run.
    rewards: mean reward of every iteration; ends: when it was published, seconds after the first Train.
    """

    trajectories_per_second: float
    tokens_per_second: float
    iteration_seconds: float
    learner_seconds: float
    rollout_only_seconds: float
    bound: float
    slots_busy: float
    bubble: float
    staleness_mean: float
    staleness_max: int
    reward_final: float
    spans_per_trajectory: float
    evicted: int
    trained_length: float
    finished_length: float
    datasets: dict[str, Prompts]
    rewards: tuple[float, ...]
    ends: tuple[float, ...]


def measure(run: Run, warmup: int) -> Measures:
    """Raises RunDirectoryError where the run has too few iterations for a steady part."""
    story = tell(run)
    published = [(t.started, t.ended, t) for _, _, t in story.publishes]
    tail = run.settings.schedule.staleness_bound + 1
    steady = published[warmup : len(published) - tail]
    if warmup < 1 or len(steady) < 2:
        raise RunDirectoryError(
            f"run {run.directory}: {len(published)} iterations leave no steady part after {warmup} of warm-up and"
            f" {tail} at the end; use more --iterations"
        )
    window = (published[warmup - 1][1], steady[-1][1])
    seconds = window[1] - window[0]
    reports = [t.report for _, _, t in steady]
    learner = sum(ended - started for started, ended, _ in steady)
    trajectories = sum(report.trajectories for report in reports)
    lengths = {key: payload.tokens for key, payload in run.payloads.items()}
    batches = [batch for batch in story.consumptions if window[0] < batch.trained.ended <= window[1]]
    rewards = [t.report.reward_mean for _, _, t in published]
    first = next(r.now for r in run.records if any(isinstance(c, e.Train) for c in r.commands))
    spans = [heard.event.spans for heard in story.accepted.values()]
    trained = [length for batch in story.consumptions for length in _lengths(story, batch, lengths)]
    return Measures(
        trajectories_per_second=trajectories / seconds,
        tokens_per_second=sum(r.tokens + r.prompt_tokens for r in reports) / seconds,
        iteration_seconds=seconds / len(steady),
        learner_seconds=learner / len(steady),
        rollout_only_seconds=max(0.0, seconds - learner) / len(steady),
        bound=trajectories / learner,
        slots_busy=slots_busy(run, story, window),
        bubble=fmean(_bubble(_lengths(story, batch, lengths)) for batch in batches),
        staleness_mean=fmean(story.staleness),
        staleness_max=max(story.staleness),
        reward_final=fmean(rewards[-max(1, round(LAST_SHARE * len(rewards))) :]),
        spans_per_trajectory=fmean(spans),
        evicted=len(story.evicted_groups) * story.group_size,
        trained_length=fmean(trained),
        finished_length=fmean(heard.event.tokens for heard in story.accepted.values()),
        datasets=_datasets(run, story),
        rewards=tuple(rewards),
        ends=tuple(ended - first for _, ended, _ in published),
    )


def _datasets(run: Run, story: Story) -> dict[str, Prompts]:
    lengths: dict[str, dict[str, list[int]]] = defaultdict(lambda: {"finished": [], "trained": []})
    groups: dict[str, list[int]] = defaultdict(list)
    consumed = story.consumed_groups
    for group_id in story.first_dispatch:
        prompt = run.prompts.get(group_id)
        dataset = prompt.dataset if prompt else "unknown"
        groups[dataset].append(group_id)
        done = [story.accepted[i].event.tokens for i in story.members(group_id) if i in story.accepted]
        lengths[dataset]["finished"] += done
        lengths[dataset]["trained"] += done if group_id in consumed else []
    return {
        dataset: Prompts(
            issued=len(issued),
            trained=sum(group_id in consumed for group_id in issued),
            finished_length=fmean(lengths[dataset]["finished"]) if lengths[dataset]["finished"] else None,
            trained_length=fmean(lengths[dataset]["trained"]) if lengths[dataset]["trained"] else None,
        )
        for dataset, issued in groups.items()
    }


def slots_busy(run: Run, story: Story, window: Interval) -> float:
    """Share of the window that rollout slots spent decoding."""
    still = pauses(run, window[1])
    busy = 0.0
    for decoding in story.decodings():
        span = (decoding.started, decoding.ended)
        busy += overlap(span, window) - sum(overlap(_cut(span, window), pause) for pause in still[decoding.lane])
    slots = run.settings.rollout.lanes * run.settings.rollout.slots
    return busy / (slots * (window[1] - window[0]))


def pauses(run: Run, end: float) -> dict[int, list[Interval]]:
    """When each lane stood still: from a Pause to the next Continue, or to its replacement."""
    found: dict[int, list[Interval]] = defaultdict(list)
    since: dict[int, float] = {}
    for record in run.records:
        for command in record.commands:
            if isinstance(command, e.Pause):
                since.setdefault(command.lane, record.now)
            elif isinstance(command, e.Continue | e.StartLane) and command.lane in since:
                found[command.lane].append((since.pop(command.lane), record.now))
    for lane, began in since.items():
        found[lane].append((began, end))
    return found


def overlap(a: Interval, b: Interval) -> float:
    return max(0.0, min(a[1], b[1]) - max(a[0], b[0]))


def _cut(a: Interval, b: Interval) -> Interval:
    return max(a[0], b[0]), min(a[1], b[1])


def _lengths(story: Story, batch: Consumption, lengths: dict[tuple[int, int], int]) -> list[int]:
    """Response lengths of a batch."""
    keys = [
        key
        for group_id, attempts in zip(batch.train.group_ids, batch.train.attempts, strict=True)
        for key in zip(story.members(group_id), attempts, strict=True)
    ]
    return [lengths[key] for key in keys if key in lengths]


def _bubble(lengths: list[int]) -> float:
    return (max(lengths) - fmean(lengths)) / max(lengths)


def reward_at(measures: Measures, seconds: float) -> float | None:
    """Mean reward of the newest RECENT iterations published by this time; None before the first."""
    done = [reward for reward, end in zip(measures.rewards, measures.ends, strict=True) if end <= seconds]
    return fmean(done[-RECENT:]) if done else None
