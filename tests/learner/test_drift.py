"""Distances against a plain difference of all parameters; the exponent against a fit; the same after a resume."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from offbeat.learner import drift
from offbeat.learner.checkpoint import stored_weights
from offbeat.learner.drift import DriftFit, DriftMeter
from offbeat.learner.policy import Policy
from offbeat.learner.step import PolicyLearner
from tests.learner.conftest import settings
from tests.learner.test_step import MakeBatch


def flat(learner: PolicyLearner) -> Tensor:
    return torch.cat([p.detach().flatten().double() for p in learner.policy.model.parameters()])


@given(st.floats(0.2, 1.5), st.floats(1e-5, 1e-2), st.integers(3, 60))
def test_the_exponent_of_a_power_law_is_its_power(power: float, rate: float, steps: int) -> None:
    fit = DriftFit()
    for step in range(1, steps + 1):
        fit = fit.moved(rate, 3.0 * (rate * step) ** power)
    assert fit.exponent == pytest.approx(power, abs=1e-4)
    assert fit.travelled == pytest.approx(rate * steps)


def test_warm_up_and_decay_do_not_bend_the_exponent_of_a_straight_path() -> None:
    fit, travelled = DriftFit(), 0.0
    for step in range(100):
        rate = min(1.0, (step + 1) / 10) * (1 - 0.9 * step / 99)
        travelled += rate
        fit = fit.moved(rate, 2.0 * travelled)
    assert fit.exponent == pytest.approx(1.0)


def test_no_exponent_without_three_distances_that_differ() -> None:
    fit = DriftFit().moved(1.0, 0.5).moved(0.0, 0.0).moved(1.0, None).moved(1.0, 0.7)
    assert (fit.count, fit.exponent) == (2, None)
    assert DriftFit().moved(1.0, 0.5).moved(0.0, 0.5).moved(0.0, 0.5).exponent is None


def test_distances_of_a_step_are_those_of_the_parameters(model_dir: Path, sample_batch: MakeBatch) -> None:
    learner = PolicyLearner.open(model_dir, settings(learning_rate=1e-3, iterations=10**6))
    path = [flat(learner)]
    for iteration in range(4):
        report = learner.step(sample_batch(iteration))
        path.append(flat(learner))
        found = report.instruments
        assert found is not None
        far = [float((path[-2] - theta).norm()) for theta in reversed(path[:-1])]
        assert found.drift_from_start == pytest.approx(float((path[-1] - path[0]).norm()), rel=1e-5)
        assert found.iteration_drift == pytest.approx(float((path[-1] - path[-2]).norm()), rel=1e-5)
        assert found.g_upd == pytest.approx(found.iteration_drift / report.learning_rate, rel=1e-4)
        # the batches all say version 0, so their staleness is the iteration
        assert found.drift_by_staleness == pytest.approx(far, rel=1e-5, abs=1e-12)
        assert found.cycle_drift == found.drift_by_staleness[-1]
        assert (found.drift_exponent is None) is (iteration < 2)
        assert found.staleness_mean == iteration
        assert [share is None for share in found.clip_share_by_staleness] == [True] * iteration + [False]
        assert found.lag_kl_by_staleness[-1] == pytest.approx(report.policy_lag_kl)
        assert found.clip_share_by_staleness[-1] == pytest.approx(report.clip_share)
        assert found.effective_sample_size is not None
        assert 0 < found.effective_sample_size <= 1


def test_several_updates_have_a_norm_each(model_dir: Path, sample_batch: MakeBatch) -> None:
    learner = PolicyLearner.open(model_dir, settings(learning_rate=1e-3, updates_per_iteration=3))
    norms: list[float] = []
    before = [flat(learner)]

    def seen(*_: object) -> None:
        norms.append(float((flat(learner) - before[0]).norm()) / 1e-3)
        before[0] = flat(learner)

    learner.optimizer.register_step_post_hook(seen)
    found = learner.step(sample_batch()).instruments
    assert len(norms) == 3
    assert found is not None
    assert found.g_upd == pytest.approx(sum(norms) / 3, rel=1e-4)


@pytest.mark.parametrize("at", [1, 3])
def test_numbers_are_the_same_after_a_resume(model_dir: Path, sample_batch: MakeBatch, tmp_path: Path, at: int) -> None:
    def stored(version: int) -> dict[str, Tensor] | None:
        return stored_weights(tmp_path / str(version) / "model.safetensors")

    chosen = settings(learning_rate=1e-3)
    whole = PolicyLearner(model_dir, Policy.load(model_dir), chosen, stored=stored)
    whole.save(tmp_path / "0")
    reports = []
    for iteration in range(5):
        reports.append(whole.step(sample_batch(iteration)).instruments)
        whole.save(tmp_path / str(iteration + 1))
    again = PolicyLearner.restore(model_dir, tmp_path / str(at), chosen, stored=stored)
    assert [again.step(sample_batch(iteration)).instruments for iteration in range(at, 5)] == reports[at:]
    alone = PolicyLearner.restore(model_dir, tmp_path / str(at), chosen).step(sample_batch(at)).instruments
    assert alone is not None
    assert (alone.drift_from_start, alone.drift_by_staleness[1:]) == (None, (None,) * at)
    assert alone.g_upd == reports[at].g_upd


def test_copies_beyond_the_room_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "MOST_BYTES", 0)
    weight = nn.Parameter(torch.zeros(2))
    asked: list[int] = []

    def stored(version: int) -> dict[str, Tensor] | None:
        asked.append(version)
        return {"w": torch.full((2,), float(version))} if version < 9 else None

    meter = DriftMeter(["w"], [weight], stored)
    for version in range(4):
        with torch.no_grad():
            weight.fill_(version)
        meter.note(version)
    assert [meter.to_version(version) for version in (3, 1, 9)] == [0.0, pytest.approx(2 * math.sqrt(2)), None]
    assert asked == [1, 9]


def test_drift_can_be_left_out(model_dir: Path, sample_batch: MakeBatch) -> None:
    found = PolicyLearner.open(model_dir, settings(measure_drift=False)).step(sample_batch()).instruments
    assert found is not None
    assert (found.g_upd, found.drift_from_start, found.drift_by_staleness) == (None, None, ())
    assert found.effective_sample_size == pytest.approx(1, abs=1e-3)
