"""Finders: who waits for whom. The learner for rollouts or for the bound, lanes for the learner or for room. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from offbeat import events as e
from offbeat.diagnosis.case import Case
from offbeat.diagnosis.finding import Evidence, Finding
from offbeat.diagnosis.timing import FEWEST

STARVED = 0.5
BOUND = 0.15
IDLE = 0.2
PARKED = 0.2
EVICTED = 0.05
FEWEST_EVICTED = 5


def learner_starved(case: Case) -> Iterator[Finding]:
    """No batch is finished for much of the time."""
    share = case.timing.shares.get("rollout", 0.0)
    if share <= STARVED:
        return
    schedule = case.run.settings.schedule
    busy = case.timing.busy_share
    seen = [_share(case, share, "the learner waited for responses")]
    if busy is not None:
        seen.append(Evidence(f"{busy:.0%} of the slots were in use", busy))
    way = "give rollout more (rollout.lanes, rollout.slots)"
    idle = busy is not None and busy < 0.5
    if schedule.name == "sync" or (idle and schedule.name != "multi-version"):
        way = f"schedule {schedule.name} makes lanes wait: use schedule.name = multi-version"
    elif idle and schedule.rollout_batch_size:
        way = "raise schedule.rollout_batch_size: it keeps slots empty"
    sentence = f"The learner is starved: it waits for responses {share:.0%} of its time."
    yield Finding("learner-starved", "warning", sentence, way, tuple(seen))


def bound_binds(case: Case) -> Iterator[Finding]:
    """A batch is there, and the staleness bound holds it back until old responses end."""
    share = case.timing.shares.get("bound", 0.0)
    if share <= BOUND:
        return
    bound = case.run.settings.schedule.staleness_bound
    sentence = f"The staleness bound K = {bound} binds: a full batch waits for older responses {share:.0%} of the time."
    remedy = "raise schedule.max_staleness, or shorten the tail of responses (rollout.max_new_tokens)"
    seen = (_share(case, share, "a batch was scored and held back by the start rule"),)
    yield Finding("bound-binds", "warning", sentence, remedy, seen)


def lanes_starved(case: Case) -> Iterator[Finding]:
    """Lanes stand empty while the learner works: it is what limits the run."""
    training, busy = case.timing.shares.get("training", 0.0), case.timing.busy_share
    if busy is None or busy >= IDLE or training < 0.8:
        return
    seen = (
        Evidence(f"{busy:.0%} of the slots were in use", busy),
        _share(case, training, "the learner was training"),
    )
    sentence = f"Lanes are starved: {busy:.0%} of their slots are in use, for the learner takes no more."
    remedy = "give the learner more, or rollout less (rollout.lanes, rollout.slots)"
    yield Finding("lanes-starved", "note", sentence, remedy, seen)


def cache_pressure(case: Case) -> Iterator[Finding]:
    """Responses wait, parked, for room for their keys and values."""
    share = case.timing.parked_share
    if share is None or share <= PARKED:
        return
    last = next(r for r in reversed(case.run.records) if isinstance(r.event, e.Progress) and r.event.parked)
    assert isinstance(last.event, e.Progress)
    seen = (
        Evidence(f"in {share:.0%} of the heartbeats a response was parked", share),
        Evidence(
            f"lane {last.event.lane}: {len(last.event.parked)} parked", float(len(last.event.parked)), seq=last.seq
        ),
    )
    sentence = "Lanes are short of room for keys and values: responses stand still and come back."
    yield Finding("cache-pressure", "warning", sentence, "raise rollout.cache_tokens or lower rollout.slots", seen)


def evictions(case: Case) -> Iterator[Finding]:
    """A run set to evict gives up much of what it samples."""
    evicted, issued = len(case.story.evictions), len(case.story.first_dispatch)
    batch = case.run.settings.schedule.train_batch_size // case.run.group_size
    if issued < FEWEST * batch or evicted < FEWEST_EVICTED or evicted / issued <= EVICTED:
        return
    seen = (Evidence(f"{evicted} of {issued} groups", evicted / issued, seq=case.story.evictions[-1][0]),)
    sentence = f"{evicted / issued:.0%} of the groups became too old and were given up, the longest first."
    remedy = "set schedule.at_bound = drain, or raise schedule.max_staleness"
    yield Finding("evictions", "warning", sentence, remedy, seen)


def _share(case: Case, share: float, what: str) -> Evidence:
    timing = case.timing
    return Evidence(
        f"{what} {share:.0%} of {timing.seconds:.0f} s, {timing.iterations} iterations", share, timing.first
    )
