"""Cells on the real engine and learner: staleness is exact, a cell is its data, and the bias is what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from offbeat.models.gold import GoldAnswers, Limits, pad
from offbeat.models.tokens import load_tokenizer
from offbeat.models.warm_start import exact_match_rates
from offbeat.studies.cell import Cell, Curves
from offbeat.studies.cycle import bias
from offbeat.studies.piloted import Controls
from offbeat.studies.rollouts import Rollouts
from offbeat.studies.surrogate import squared_norm
from offbeat.studies.training import Trainer, train
from offbeat.theory.refresh import Refresh, lag_at
from tests.studies.conftest import TINY


def cell(staleness: int, refresh: Refresh = "fixed-lag", seed: int = 0, rate: float = 3e-3, **options: Any) -> Cell:
    return Cell("test", "train", "plain", seed, staleness, refresh, rate, 7, TINY, options)


def quietly(done: int, total: int) -> None:
    pass


@pytest.mark.parametrize(("staleness", "refresh"), [(0, "fixed-lag"), (2, "fixed-lag"), (2, "cyclic")])
def test_every_batch_is_sampled_by_the_version_of_its_lag(
    policy: Path, monkeypatch: pytest.MonkeyPatch, staleness: int, refresh: Refresh
) -> None:
    asked: list[tuple[int, int]] = []
    sampled: set[tuple[int, int]] = set()
    original = Rollouts.batch

    def watched(self: Rollouts, iteration: int, version: int, *rest: Any) -> Any:
        asked.append((iteration, version))
        made = original(self, iteration, version, *rest)
        sampled.update((iteration, span.version) for g in made.groups for t in g.trajectories for span in t.spans)
        return made

    monkeypatch.setattr(Rollouts, "batch", watched)
    found = train(cell(staleness, refresh), policy, quietly)
    assert asked == [(step, step - lag_at(step, staleness, refresh)) for step in range(7)]
    assert sampled == set(asked)
    assert len(found.reward) == 7
    assert [step for step, _ in found.evaluations] == [0, 3, 6, 7]


def test_sync_has_no_lag_and_stale_runs_have_that_of_their_last_updates(policy: Path) -> None:
    sync, stale = (train(cell(s), policy, quietly) for s in (0, 3))
    assert sync.lag_distance == [0.0] * 7
    assert max(sync.lag_kl) < 1e-6
    assert max(stale.update_norm) > 0
    for step in range(7):
        path = sum(stale.update_norm[max(0, step - 3) : step])
        assert stale.lag_distance[step] <= path * (1 + 1e-5)
        assert stale.drift[step] <= sum(stale.update_norm[: step + 1]) * (1 + 1e-5)
    assert max(stale.lag_kl) > 1e-6


def test_the_exam_is_that_of_the_warm_start(policy: Path) -> None:
    trainer = Trainer(cell(0), policy, TINY.settings(1e-3, 7))
    gold = GoldAnswers(trainer.task, load_tokenizer(policy), Limits(TINY.context, TINY.max_new_tokens))
    padded = pad([example for prompt in trainer.task.held_out(TINY.held_out) if (example := gold.encode(prompt))])
    expected = exact_match_rates(trainer.learner.policy.model, [padded], TINY.held_out).sampled
    assert trainer.exact_match() == pytest.approx(expected, rel=1e-5)
    assert expected > 0
    trainer.close()


def test_a_cell_is_fixed_by_its_data(policy: Path) -> None:
    first, again, other = (train(cell(2, seed=seed), policy, quietly) for seed in (1, 1, 2))
    assert first == again
    assert first.reward != other.reward


def test_a_cell_that_blows_up_ends_early_and_says_where(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Trainer.step

    def poisoned(self: Trainer, lag: int) -> Any:
        report = original(self, lag)
        if report.iteration == 3:
            with torch.no_grad():
                self.parameters[0].fill_(float("nan"))
        return report

    monkeypatch.setattr(Trainer, "step", poisoned)
    found: Curves = train(cell(1), policy, quietly)
    assert found.broke == 3
    assert len(found.reward) == 3


def test_a_cell_may_end_once_its_collapse_is_settled(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.studies.training.is_settled", lambda rewards: len(rewards) == 4)
    whole, short = train(cell(1), policy, quietly), train(cell(1, until_collapse=True), policy, quietly)
    assert short.reward == whole.reward[:4]
    assert [step for step, _ in short.evaluations] == [0, 3, 4]


def test_bias_is_measured_at_each_staleness_and_rate_from_the_same_start(policy: Path) -> None:
    options = {
        "stalenesses": [1, 3], "rates": [1e-3, 1e-9], "approach": 2, "approach_rate": 1e-3, "batches": 3, "groups": 8,
    }  # fmt: skip
    chosen = Cell("test", "bias", "cycle", 0, 3, "cyclic", 1e-3, 8, TINY, options)
    seen: list[tuple[int, int]] = []
    found = bias(chosen, policy, lambda done, total: seen.append((done, total)))
    assert [(point["staleness"], point["eta"]) for point in found["points"]] == [
        (1, 1e-3), (3, 1e-3), (1, 1e-9), (3, 1e-9),
    ]  # fmt: skip
    near, far, *still = found["points"]
    assert 0 < near["lag_distance"] < far["lag_distance"]
    assert 0 < near["bias_squared"] < far["bias_squared"]
    for point in still:  # theta is phi, and there is nothing left to be noise
        assert abs(point["bias_squared"]) < 1e-8 * point["gradient_squared"]
        assert point["gradient_squared"] == pytest.approx(still[0]["gradient_squared"], rel=1e-3)
    assert seen[-1] == (8, 8)
    assert found["beside_gold"] < 0.2


def test_squared_norm_is_unbiased_by_noise() -> None:
    torch.manual_seed(0)
    signal = torch.zeros(50)
    signal[0] = 2.0
    found = [squared_norm([signal + torch.randn(50) for _ in range(6)]) for _ in range(800)]
    values = torch.tensor([value for value, _ in found])
    assert float(values.mean()) == pytest.approx(4.0, abs=0.3)
    errors = torch.tensor([error for _, error in found])
    ratio = float(errors.mean()) / float(values.std())
    assert 0.9 < ratio < 1.5, "the jackknife is on the safe side, up to sqrt(2) where noise is all there is"


def test_options_reach_the_objective_and_the_optimizer() -> None:
    options = {"learner": {"objective": {"name": "grpo", "clip_low": 1.0, "clip_high": 1e6}}, "first_beta": 0.5}
    asked = Cell("x", "train", "arm", 0, 1, "fixed-lag", 1e-4, 3, TINY, options)
    assert asked.settings.learner.objective.ratio_bounds == (0.0, 1.0 + 1e6)
    made = Controls(asked).optimizer([torch.nn.Parameter(torch.zeros(2))], asked.settings.learner)
    assert [group["betas"] for group in made.param_groups] == [(0.5, 0.999)]
    assert asked.key != Cell("x", "train", "arm", 0, 1, "fixed-lag", 1e-4, 3, TINY).key
