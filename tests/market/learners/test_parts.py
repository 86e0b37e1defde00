"""Chance, replay, noise and gradient alignment of stacked agents."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from offbeat.align.rule import AlignSettings, cosine_of, decide
from offbeat.market.learners.algorithms import DDPGSettings
from offbeat.market.learners.alignment import StackedAlignment
from offbeat.market.learners.chance import Chance, agent_seeds
from offbeat.market.learners.ddpg import DDPG
from offbeat.market.learners.replay import Replay
from offbeat.market.learners.wandering import Wandering


def test_an_agents_numbers_do_not_depend_on_who_else_draws() -> None:
    crowd, alone = Chance([1, 2, 3]), Chance([2])
    crowd.uniform(np.array([0, 2]), 5)
    first = crowd.uniform(np.array([1, 2]), 4)[0]
    second = crowd.normal(slice(None), 3)[1]
    np.testing.assert_array_equal(first, alone.uniform(np.array([0]), 4)[0])
    np.testing.assert_array_equal(second, alone.normal(np.array([0]), 3)[0])


def test_numbers_are_uniform_and_normal_and_streams_unrelated() -> None:
    chance = Chance(agent_seeds([0, 1], 2, "x"))
    u = chance.uniform(slice(None), 20_000)
    assert 0 < u.min() < u.max() < 1
    np.testing.assert_allclose(u.mean(axis=1), 0.5, atol=0.01)
    np.testing.assert_allclose(u.var(axis=1), 1 / 12, atol=0.003)
    assert np.abs(np.corrcoef(u) - np.eye(4)).max() < 0.03
    z = chance.normal(slice(None), 20_001)
    np.testing.assert_allclose(z.mean(axis=1), 0.0, atol=0.03)
    np.testing.assert_allclose(z.std(axis=1), 1.0, atol=0.03)
    assert np.abs(np.corrcoef(z[:, :-1].ravel(), z[:, 1:].ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("capacity", [6, 100])
def test_a_sampled_transition_is_two_rows_in_succession(capacity: int) -> None:
    replay = Replay(3, 1, capacity, Chance([7, 8, 9]))
    written = np.zeros(3, dtype=int)
    rng = np.random.default_rng(0)
    for k in range(20):
        agents = np.array([0, 1, 2] if k < 2 else [0] if rng.random() < 0.5 else [0, 2])
        step = written[agents]
        rows = np.column_stack([step, step / 100, 10 + step, 20 + step, step % 5 == 0]).astype(np.float32)
        replay.add(agents, torch.from_numpy(rows))
        written[agents] += 1
    batch = replay.sample(300)
    k = batch.observation[..., 0]
    torch.testing.assert_close(batch.following[..., 0], k + 1)
    torch.testing.assert_close(batch.action[..., 0], k / 100)
    torch.testing.assert_close(batch.profit[..., 0], 11 + k)
    torch.testing.assert_close(batch.elapsed[..., 0], 21 + k)
    torch.testing.assert_close(batch.weight[..., 0], ((k + 1) % 5 != 0).float())
    for agent in range(3):
        oldest = max(0, written[agent] - capacity)
        assert set(k[agent].int().tolist()) == set(range(oldest, written[agent] - 1))


def test_an_agent_without_a_transition_has_weight_zero() -> None:
    replay = Replay(2, 1, 10, Chance([1, 2]))
    replay.add(np.array([0]), torch.ones(1, 5))
    assert not replay.sample(8).weight.any()


def test_the_latest_rows_come_in_order() -> None:
    replay = Replay(1, 1, 4, Chance([1]))
    for k in range(6):
        replay.add(np.array([0]), torch.tensor([[float(k), 0, 0, 0, 0]]))
    rows, there = replay.latest(5)
    assert there[0].tolist() == [False, True, True, True, True]
    assert rows[0, 1:, 0].tolist() == [2, 3, 4, 5]


def test_noise_forgets_in_time_and_not_in_events() -> None:
    """Correlation e^{-t / memory} over t units of time, whether in one step or in ten; variance 1 throughout."""
    many = 20_000
    for steps in (1, 10):
        noise = Wandering(2.0, Chance(list(range(many))))
        everyone, step = np.arange(many), torch.full((many,), 1.5 / steps)
        start = noise.draw(everyone, step, torch.ones(many)).clone()
        for _ in range(steps):
            end = noise.draw(everyone, step, torch.zeros(many)).clone()
        assert float((start * end).mean()) == pytest.approx(np.exp(-0.75), abs=0.03)
        assert float(end.std()) == pytest.approx(1.0, abs=0.03)


def by_hand(settings: AlignSettings, gradients: list[np.ndarray]) -> list[np.ndarray]:
    """What one agent's gradients become, step by step."""
    reference, skips, found = None, 0, []
    for g in gradients:
        c = None if reference is None else cosine_of(float(g @ reference), float(g @ g), float(reference @ reference))
        decision = decide(settings, c, skips)
        skips = skips + 1 if decision.regime == "skipped" else 0
        turned = g if c is None else g + (decision.gain - 1) * (g @ reference) / (reference @ reference) * reference
        found.append(turned)
        if decision.regime != "skipped" or settings.on_skip == "update":
            reference = turned if settings.reference == "applied" else g
    return found


@pytest.mark.parametrize("reference", ["raw", "applied"])
@pytest.mark.parametrize("on_skip", ["update", "keep"])
def test_each_agent_is_aligned_with_its_own_past(reference, on_skip) -> None:
    settings = AlignSettings(mode="cap", c_low=0.1, c_high=0.7, max_skips=2, reference=reference, on_skip=on_skip)
    rng = np.random.default_rng(2)
    steps = rng.normal(0.4, 1.0, (12, 3, 8))
    steps[:, 1] = steps[0, 1] + 0.05 * steps[:, 1]  # one agent nearly repeats itself: skipped until the watchdog
    control = StackedAlignment(settings, 3)
    shapes, regimes = ((2, 3), (1, 2)), set()
    found = []
    for step in steps:
        stacked = [
            torch.from_numpy(step[:, :6].reshape(3, *shapes[0])),
            torch.from_numpy(step[:, 6:].reshape(3, *shapes[1])),
        ]
        turned, skipped = control.control(stacked)
        found.append(np.concatenate([t.reshape(3, -1).numpy() for t in turned], axis=1))
        regimes |= {d.regime for d in control.last}
        assert skipped.tolist() == [a for a, d in enumerate(control.last) if d.regime == "skipped"]
    for agent in range(3):
        np.testing.assert_allclose(np.stack(found)[:, agent], by_hand(settings, list(steps[:, agent])), atol=1e-10)
    assert regimes >= {"invalid", "safe", "projected", "skipped"}
    assert "released" in regimes or reference == "applied"  # what is left of a skipped gradient points elsewhere


def test_a_skipped_agent_does_not_move_and_observing_changes_nothing() -> None:
    def trained(settings: AlignSettings | None) -> tuple[DDPG, list[torch.Tensor]]:
        learner = DDPG([1, 2], 1, 2, DDPGSettings(hidden=(6,), batch=8), None, torch.ones(2))
        if settings is not None:
            learner.align(settings)
        replay = Replay(2, 2, 30, learner.chance("replay"))
        rng, past = np.random.default_rng(0), []
        for _ in range(8):
            replay.add(
                np.arange(2),
                torch.from_numpy(np.abs(rng.normal(size=(2, 6))).astype(np.float32))
                * torch.tensor([1, 1, 1, 1, 1, 0.0]),
            )
            learner.learn(replay)
            past.append(learner.actor[0].detach().clone())
        return learner, past

    plain, free = trained(None)
    observed, _ = trained(AlignSettings(mode="observe"))
    for a, b in zip(plain.actor, observed.actor, strict=True):
        assert torch.equal(a, b)
    assert all(not torch.equal(a, b) for a, b in pairwise(free))
    skipping, past = trained(AlignSettings(mode="orth", c_low=0.0, c_high=1e-6, max_skips=0))
    assert all(d.regime == "skipped" for d in skipping.alignments["actor"].last)
    assert all(torch.equal(a, b) for a, b in pairwise(past))


def test_alignment_goes_on_where_it_was() -> None:
    settings = AlignSettings(mode="cap")
    whole, half = StackedAlignment(settings, 2), StackedAlignment(settings, 2)
    steps = [[torch.randn(2, 3, generator=torch.Generator().manual_seed(k))] for k in range(6)]
    for step in steps[:3]:
        whole.control(step)
        half.control(step)
    resumed = StackedAlignment(settings, 2)
    resumed.restore(half.state())
    for step in steps[3:]:
        assert torch.equal(whole.control(step)[0][0], resumed.control(step)[0][0])
