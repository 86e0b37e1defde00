"""Alignment control in the learner: off is bitwise off, saved is restored, and the step report says what was done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors import safe_open
from torch import nn

from offbeat.backends.alignment import attach_alignment
from offbeat.errors import InvariantError, SettingsError
from offbeat.learner.step import PolicyLearner
from offbeat.records import Batch, StepAlignment, StepReport
from offbeat.settings import LearnerSettings, settings_from
from tests.learner.conftest import settings
from tests.learner.test_step import assert_same, differs, poison, state_of, with_rewards

MakeBatch = Callable[..., Batch]
SMALL = 1e-4
"""A learning rate at which the same batch twice gives gradients that are aligned."""


def learner(model_dir: Path, learner_settings: dict[str, Any] | None = None, **align: Any) -> PolicyLearner:
    return PolicyLearner.open(
        model_dir,
        settings(align=align, learning_rate=SMALL, **(learner_settings or {})),
        attach=attach_alignment if align else None,
    )


def train(trained: PolicyLearner, batches: list[Batch]) -> list[StepReport]:
    return [trained.step(batch) for batch in batches]


def assert_same_files(left: Path, right: Path) -> None:
    for name in ("model.safetensors", "optimizer.safetensors"):
        with safe_open(left / name, framework="pt") as a, safe_open(right / name, framework="pt") as b:
            assert a.metadata() == b.metadata()
            assert sorted(a.keys()) == sorted(b.keys())
            for key in a.keys():  # noqa: SIM118
                assert torch.equal(a.get_tensor(key), b.get_tensor(key)), key


@pytest.fixture(scope="module")
def batches(sample_batch: MakeBatch) -> list[Batch]:
    return [sample_batch(iteration, seed=iteration // 2) for iteration in range(6)]


def test_off_and_observe_are_bitwise_the_learner_without(model_dir: Path, batches: list[Batch]) -> None:
    plain = learner(model_dir)
    reports = train(plain, batches)
    assert all(report.alignment is None for report in reports)
    for mode in ("off", "observe"):
        for clip in ("after", "before"):
            watched = learner(model_dir, mode=mode, clip=clip, lag_span=2)
            again = train(watched, batches)
            assert_same(state_of(plain), state_of(watched))
            assert [(r.loss, r.gradient_norm) for r in again] == [(r.loss, r.gradient_norm) for r in reports]


def test_off_leaves_nothing_in_a_checkpoint(model_dir: Path, tmp_path: Path, batches: list[Batch]) -> None:
    plain, off = PolicyLearner.open(model_dir, settings(learning_rate=SMALL)), learner(model_dir, mode="off")
    for trained, name in ((plain, "plain"), (off, "off")):
        train(trained, batches[:2])
        trained.save(tmp_path / name)
    assert_same_files(tmp_path / "plain", tmp_path / "off")


@pytest.mark.parametrize(
    "align",
    [
        {"mode": "cap", "c_low": 0.05, "c_high": 0.6},
        {"mode": "orth", "c_low": 0.05, "c_high": 0.1, "reference": "applied", "lag_span": 2, "history": "bfloat16"},
        {"mode": "ratio", "c_low": 0.05, "c_high": 0.9, "direction": "random", "on_skip": "keep"},
    ],
    ids=["cap", "orth", "ratio"],
)
def test_saved_and_restored_continues_bit_for_bit(
    model_dir: Path, tmp_path: Path, batches: list[Batch], align: dict[str, Any]
) -> None:
    chosen = settings(align=align, learning_rate=SMALL, measure_drift=False)  # drift needs versions that are stored
    straight = PolicyLearner.open(model_dir, chosen, attach=attach_alignment)
    reports = train(straight, batches)
    first = PolicyLearner.open(model_dir, chosen, attach=attach_alignment)
    train(first, batches[:3])
    first.save(tmp_path / "3")
    torch.manual_seed(99)
    second = PolicyLearner.restore(model_dir, tmp_path / "3", chosen, 3, attach=attach_alignment)
    again = train(second, batches[3:])
    assert_same(state_of(straight), state_of(second))
    assert [r.alignment for r in again] == [r.alignment for r in reports[3:]]
    assert any(r.alignment.projected or r.alignment.skipped for r in reports)
    straight.save(tmp_path / "straight")
    second.save(tmp_path / "6")
    assert_same_files(tmp_path / "straight", tmp_path / "6")


def test_the_report_says_what_was_measured_and_done(model_dir: Path, batches: list[Batch]) -> None:
    trained = learner(model_dir, mode="cap", c_low=0.05, c_high=1.0, lag_span=1)
    first, second, *_ = (report.alignment for report in train(trained, batches[:2]))
    assert first == StepAlignment(invalid=1)
    assert second.projected == 1  # the same batch twice
    assert second.cosine > 0.5
    assert second.controlled == pytest.approx(0.05)
    assert second.kept == pytest.approx(math.sqrt((1 - second.cosine**2) / (1 - 0.05**2)))
    assert second.lags == {1: pytest.approx(second.cosine)}
    assert second.update is not None
    assert msgspec.json.decode(msgspec.json.encode(second), type=StepAlignment) == second


def test_a_skip_leaves_the_learner_where_it_is(model_dir: Path, batches: list[Batch]) -> None:
    trained = learner(model_dir, {"weight_decay": 0.1}, mode="cap", c_low=0.05, c_high=0.1)
    trained.step(batches[0])
    before = state_of(trained)
    report = trained.step(batches[1])
    assert_same(before, state_of(trained))
    assert (report.alignment.skipped, report.alignment.kept, trained.version) == (1, 0.0, 2)
    assert (report.skipped_updates, report.consecutive_skips) == (0, 0)  # those count what is not finite
    assert report.gradient_norm > 0


def sgd(parameters: Iterable[nn.Parameter], chosen: LearnerSettings) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def test_clipping_bounds_what_control_left_or_what_was_there(model_dir: Path, batches: list[Batch]) -> None:
    for clip in ("after", "before"):
        align = {"mode": "orth", "c_low": 0.05, "c_high": 1.0, "clip": clip}
        trained = PolicyLearner.open(model_dir, settings(max_gradient_norm=1e-3, align=align), sgd, attach_alignment)
        trained.step(batches[0])
        before = torch.cat([p.detach().double().flatten() for p in trained.policy.model.parameters()])
        report = trained.step(batches[1])
        after = torch.cat([p.detach().double().flatten() for p in trained.policy.model.parameters()])
        assert report.alignment.kept < 0.9
        share = 1.0 if clip == "after" else report.alignment.kept
        rate = trained.optimizer.param_groups[0]["lr"]
        assert (after - before).norm().item() == pytest.approx(rate * 1e-3 * share, rel=0.02)


def test_an_update_left_out_leaves_a_hole(model_dir: Path, batches: list[Batch]) -> None:
    trained = learner(model_dir, mode="orth", c_low=0.05, c_high=0.1)
    trained.step(batches[0])
    poison(trained, math.nan, times=1)
    before = state_of(trained)
    broken, after = train(trained, batches[1:3])
    assert (broken.skipped_updates, broken.alignment.invalid, broken.alignment.cosine) == (1, 1, None)
    assert (after.alignment.invalid, after.alignment.cosine) == (1, None)
    assert differs(before, state_of(trained))


def test_a_batch_without_advantage_is_no_update(model_dir: Path, batches: list[Batch]) -> None:
    trained = learner(model_dir, mode="observe")
    idle = with_rewards(batches[1], (1.0,) * 4, (0.0,) * 4, (0.3,) * 4)
    reports = train(trained, [batches[0], idle, msgspec.structs.replace(batches[0], iteration=2)])
    assert reports[1].alignment is None
    assert reports[2].alignment.cosine > 0.5


def test_settings_that_nobody_would_heed_are_refused(model_dir: Path) -> None:
    with pytest.raises(InvariantError, match=r"learner\.align or learner\.autopilot is on"):
        PolicyLearner.open(model_dir, settings(align={"mode": "cap"}))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mode": "capped"}, r"learner\.align\.mode = 'capped'"),
        ({"c_low": 0.5, "c_high": 0.5}, r"learner\.align\.c_low = 0\.5 is not below learner\.align\.c_high = 0\.5"),
        ({"c_hi": 0.5}, r"learner\.align\.c_hi = 0\.5: unknown key; remove it \(known keys: mode, c_low, c_high"),
        ({"lag_span": -1}, r"learner\.align\.lag_span = -1"),
    ],
)
def test_wrong_settings_are_one_line(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        settings_from({"learner": {"align": wrong}})
    assert "\n" not in str(caught.value)


def test_the_autopilot_projects_as_strongly_and_learns_as_fast_as_it_is_told(
    model_dir: Path, tmp_path: Path, batches: list[Batch]
) -> None:
    """The same batch twice, so the second gradient is aligned; levers are not part of what is saved."""
    chosen = settings(learning_rate=SMALL, autopilot=True, measure_drift=False)
    free, held, half = (PolicyLearner.open(model_dir, chosen, attach=attach_alignment) for _ in range(3))
    for trained in (free, held, half):
        trained.step(batches[0])
    held.save(tmp_path / "1")
    reports = [free.step(batches[1]), held.step(batches[1], projection=1.0), half.step(batches[1], 0.5, rate=0.25)]
    cosines = [report.alignment.controlled for report in reports]
    assert [report.alignment.projected for report in reports] == [0, 1, 1]
    assert cosines[0] == reports[0].alignment.cosine > 0.525
    assert cosines[1:] == [pytest.approx(0.05), pytest.approx(1 - 0.5 * 0.95)]
    assert [report.learning_rate for report in reports[1:]] == [reports[0].learning_rate, reports[0].learning_rate / 4]
    again = PolicyLearner.restore(model_dir, tmp_path / "1", chosen, 1, attach=attach_alignment)
    assert again.step(batches[1], projection=1.0).alignment == reports[1].alignment
    assert_same(state_of(again), state_of(held))


def test_autopilot_with_a_mode_of_its_own_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"learner.align.mode = orth: learner.autopilot = true"):
        settings(autopilot=True, align={"mode": "orth"})
