"""The simulator against answers known exactly: single lanes, Little's law, M/G/infinity, learner-bound staleness."""

from __future__ import annotations

import random
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.eventtime.heap import EventHeap
from offbeat.flow.ledger import LiveGroup, Member
from offbeat.flow.scheduler import Scheduler
from offbeat.flow.schedules.multi_version import MultiVersion
from offbeat.flow.window import Window
from offbeat.loop import run
from offbeat.sim.cluster import Cluster, changed
from offbeat.sim.costs import Decode, Prefill, seconds_for, steps_within
from offbeat.sim.lane import Response, SimLane
from offbeat.sim.lengths import Lengths
from offbeat.sim.measures import Measures
from offbeat.sim.simulate import NoJournal, simulate
from offbeat.sim.world import SimWorld
from tests.sim.clusters import cluster

few = settings(max_examples=60, deadline=None)


def test_one_lane_of_constant_lengths_takes_the_formula() -> None:
    """sync: a batch of 16 runs at once for n tokens, then is trained on: n * step(16) + T, every iteration."""
    about = cluster(
        accelerators=2,
        slots=8,
        decode={"floor_seconds": 0.5, "per_sequence_seconds": 0.01, "knee": 2},
        lengths={"kind": "constant", "median": 30},
        training={"fixed_seconds": 7.0, "work": 6.0, "per_token_work": 0.01},
    )
    result = simulate(about, "sync").result
    rollout = 30 * (0.5 + 0.01 * (8 - 2))  # two lanes, eight responses on each
    train = 7 + (6 + 0.01 * 16 * 30) / 2
    assert result["step_minutes"] == pytest.approx((rollout + train) / 60)
    assert result["rollout_only_minutes"] == pytest.approx(rollout / 60)
    assert result["tokens_per_second"] == pytest.approx(16 * 30 / (rollout + train))
    assert result["slots_busy"] == pytest.approx(16 * rollout / (16 * (rollout + train)))


@given(st.floats(0.01, 2), st.floats(0, 0.01), st.integers(1, 50), st.floats(0, 5000), st.floats(0, 1e4))
@few
def test_closed_form_and_its_inverse(base: float, slope: float, running: int, context: float, steps: float) -> None:
    seconds = seconds_for(steps, base, context, running, slope)
    assert steps_within(seconds, base, context, running, slope) == pytest.approx(steps, rel=1e-9, abs=1e-9)


@given(st.integers(0, 2**32), st.floats(0, 0.001))
@few
def test_a_lane_does_not_care_how_often_it_is_looked_at(seed: int, slope: float) -> None:
    """Advancing in parts is advancing at once; ends come in the order and at the times of a token-by-token oracle."""
    rng = random.Random(seed)
    lengths = [rng.randrange(1, 60) for _ in range(9)]
    decode = Decode(floor_seconds=0.1, per_sequence_seconds=0.02, per_context_token_seconds=slope)
    ends = []
    for looks in (1, 7):
        lane = SimLane(0, 6, decode, Prefill(tokens_per_second=1e12), 1)
        lane.queue.extend(Response(i, 0, i, 0, n, 0, 0) for i, n in enumerate(lengths))
        now, found = 0.0, {}
        lane.fill(now)
        while lane.running:
            moment = lane.next_moment()
            for part in range(1, looks):
                lane.advance(now + (moment - now) * part / looks)
            now = moment
            lane.advance(now)
            found.update((r.trajectory_id, now) for r in lane.ended())
            lane.fill(now)
        ends.append(found)
    assert ends[0] == pytest.approx(ends[1], rel=1e-6)
    if slope == 0:
        assert ends[0] == pytest.approx(token_by_token(lengths, 6, decode), rel=1e-6)


def token_by_token(lengths: list[int], slots: int, decode: Decode) -> dict[int, float]:
    """When each response ends, one decode step at a time."""
    queue, running, now, found = list(enumerate(lengths)), {}, 0.0, {}
    while queue or running:
        while queue and len(running) < slots:
            key, tokens = queue.pop(0)
            running[key] = tokens
        now += decode.step(len(running), 0)
        for key in list(running):
            running[key] -= 1
            if not running[key]:
                del running[key]
                found[key] = now
    return found


def test_m_g_infinity() -> None:
    """Poisson arrivals at a lane with a slot for everybody: the number running is Poisson with mean lambda E[S]."""
    rng = random.Random(0)
    rate, mean = 3.0, 40.0
    lane = SimLane(0, 10**6, Decode(floor_seconds=1.0), Prefill(), 1)
    arrivals: EventHeap[int] = EventHeap()
    arrivals.push(0.0, 0)
    counts, now, next_look, key = [], 0.0, 1000.0, 0
    while len(counts) < 6000:
        moment = min(arrivals.earliest, lane.next_moment(), next_look)
        now = moment
        lane.advance(now)
        lane.ended()
        if now == next_look:
            counts.append(len(lane.running))
            next_look += 15.0
        if now == arrivals.earliest:
            arrivals.pop()
            lane.queue.append(Response(key, 0, key, 0, max(1, round(rng.expovariate(1 / mean))), 0, 0))
            lane.fill(now)
            key += 1
            arrivals.push(now + rng.expovariate(rate), key)
    assert fmean(counts) == pytest.approx(rate * mean, rel=0.02)
    assert np.var(counts) == pytest.approx(rate * mean, rel=0.1)


@pytest.mark.parametrize("schedule", ["multi-version", "one-step-off", "in-flight", "sync"])
def test_littles_law(schedule: str) -> None:
    """Mean number in slots = throughput x mean time in a slot, measured in two ways that share nothing."""
    from offbeat import events as e

    about = cluster(run={"iterations": 120, "warmup": 0}, slots=6, training={"fixed_seconds": 3.0})
    stays: list[float] = []

    def observe(event: e.Event, now: float, commands: object) -> None:
        if isinstance(event, e.Finished):
            stays.append(event.ended - event.started)

    done = simulate(about, schedule, observers=[observe])
    seconds = done.measures.steps[-1].ended
    running = done.measures.steps[-1].slot_seconds / seconds
    assert running == pytest.approx(len(stays) / seconds * fmean(stays), rel=0.02)


def test_learner_bound_staleness_is_what_is_ahead_in_the_queue() -> None:
    """When the learner is the limit, groups start and are taken at publishes, N - B trajectories ahead of B a step: the
    mean staleness is (N - B) / B, whatever the lengths."""
    about = cluster(
        schedule={"over_dispatch": 1.5, "max_versions": 3},
        training={"fixed_seconds": 500.0},
        run={"iterations": 60, "warmup": 10},
    )
    result = simulate(about, "multi-version").result
    assert result["learner_idle"] == pytest.approx(0, abs=1e-9)
    assert result["staleness_mean"] == pytest.approx(1.5, rel=0.02)


CONCURRENCY, BATCH, GROUP = 96, 96, 2


def always_sampling(iterations: int, **sections: Any) -> tuple[Cluster, float, float]:
    """Lanes that are never short of work; M = E[longest of a group] / E[length]; E[length]."""
    about = cluster(
        slots=CONCURRENCY // 2,
        lengths={"kind": "lognormal", "median": 50, "sigma": 0.7, "cap": 2000},
        schedule={
            "group_size": GROUP, "train_batch_size": BATCH, "max_staleness": 30, "max_versions": 31,
            "rollout_batch_size": 30 * BATCH, "migration": "off",
        },
        run={"iterations": iterations, "warmup": 30},
        **sections,
    )  # fmt: skip
    store = Lengths(about.lengths, GROUP, about.run.seed)
    lengths = np.array([store.of(prompt, 0) for prompt in range(15_000)])
    return about, lengths.max(axis=1).mean() / lengths.mean(), lengths.mean()


def test_fully_asynchronous_staleness_of_applied_compute() -> None:
    """rho < 1: mean staleness = C M / B + rho (appliedcompute.com/research/staleness-in-fully-async-rl): C responses at
    once, B a batch, M = E[longest of a group] / E[length], rho = training time / time to sample a batch."""
    about, longest, mean = always_sampling(300, training={"fixed_seconds": 40.0})
    rho = 40.0 / (BATCH * mean / CONCURRENCY)
    assert rho < 1
    predicted = CONCURRENCY * longest / BATCH + rho
    assert simulate(about, "multi-version").result["staleness_mean"] == pytest.approx(predicted, rel=0.02)


class Queue(MultiVersion):
    """Plain fully asynchronous training: what is ready waits in one queue, first in first out; when that is full its
    oldest goes (and the prompt is issued again)."""

    def __init__(self, scheduler: Scheduler, most: int) -> None:
        self.ready: list[LiveGroup] = []
        self.most = most
        self.scheduler = scheduler
        self._score = scheduler.ledger.score
        scheduler.ledger.score = self.score  # type: ignore[method-assign]

    def score(self, member: Member) -> None:
        self._score(member)
        if member.group.unscored == 0:
            self.ready.append(member.group)
            if len(self.ready) > self.most:
                self.scheduler.ledger.evict(self.ready.pop(0))

    def admits(self, window: Window, version: int) -> bool:
        return window.has_room()

    def batch(self, window: Window) -> list[LiveGroup] | None:
        groups = window.plan.groups_per_batch
        if len(self.ready) < groups:
            return None
        taken, self.ready = self.ready[:groups], self.ready[groups:]
        return taken


@pytest.mark.parametrize(("rho", "q"), [(1.5, 2.0), (2.0, 1.5), (1.25, 3.0)])
def test_a_bounded_queue_has_the_staleness_of_applied_compute(rho: float, q: float) -> None:
    """rho > 1: mean staleness = C M / (rho B) + (2 q + rho - 1) / (2 rho), for a queue of q batches."""
    about, longest, mean = always_sampling(250)
    sampling = BATCH * mean / CONCURRENCY
    about = changed(about, training={"fixed_seconds": rho * sampling})
    world = SimWorld(about, "multi-version")
    measures = Measures(about, world, "multi-version")
    scheduler = Scheduler(about.plan("multi-version"))
    scheduler.schedule = Queue(scheduler, round(q * BATCH / GROUP))
    run(world, scheduler, NoJournal(), [measures.saw])
    predicted = CONCURRENCY * longest / (rho * BATCH) + (2 * q + rho - 1) / (2 * rho)
    assert measures.result()["staleness_mean"] == pytest.approx(predicted, rel=0.02)
