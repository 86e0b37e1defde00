"""Whatever an update's sums are, its report survives JSON: the run log could not be read again otherwise."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from offbeat.learner.batches import Sample
from offbeat.learner.objective import ObjectiveStatistics
from offbeat.learner.step import PolicyLearner
from offbeat.learner.tally import LARGEST, Update, report
from offbeat.records import Batch, Group, Prompt, StepReport, Trajectory
from tests.learner.conftest import settings
from tests.learner.test_step import MakeBatch, with_rewards

BATCH = Batch(0, (Group(0, Prompt(0, "test", "", ""), (Trajectory(0, 0, (), "stop"),), (1.0,)),))
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
ROWS = st.tuples(NUMBERS, NUMBERS, st.integers(1, 99), NUMBERS, NUMBERS, NUMBERS, NUMBERS)


def update_of(row: tuple[float, ...], gradient_norm: float) -> Update:
    loss, entropy, *sums = (torch.tensor(number, dtype=torch.float64) for number in row)
    tokens, ratio_sum, clipped, lag_kl_sum, ratio_max = sums
    update = Update()
    each = torch.stack([tokens, clipped, lag_kl_sum, ratio_sum.log()]).unsqueeze(0)
    sample = Sample(0, (1,), (2,), (-1.0,), None, 1.0, staleness=1)
    update.add(loss, entropy, ObjectiveStatistics(tokens, ratio_sum, ratio_max, clipped, lag_kl_sum, each), [sample])
    update.close(gradient_norm)
    return update


def numbers(made: StepReport) -> list[float]:
    """Every number of a report, those of its instruments included."""
    assert made.instruments is not None
    found: list[float] = []
    nested = ("instruments", "alignment", "mismatch")
    plain = [value for name, value in msgspec.structs.asdict(made).items() if name not in nested]
    split = made.mismatch
    gaps = (
        ()
        if split is None
        else (*msgspec.structs.astuple(split.engine_error), *msgspec.structs.astuple(split.policy_lag))
    )
    for value in (*plain, *gaps, *msgspec.structs.astuple(made.instruments)):
        found += [number for number in (value if isinstance(value, tuple) else (value,)) if number is not None]
    return found


def assert_readable(made: StepReport) -> None:
    assert all(math.isfinite(number) for number in numbers(made))
    assert msgspec.json.decode(msgspec.json.encode(made), type=StepReport) == made


@given(st.lists(st.tuples(ROWS, NUMBERS), min_size=1, max_size=3), NUMBERS)
def test_every_report_is_finite_and_readable(rows: list[tuple[tuple[float, ...], float]], rate: float) -> None:
    updates = [update_of(row, norm) for row, norm in rows]
    made = report(BATCH, updates, 0, rate, 0, 0.5)
    assert_readable(made)
    assert made.skipped_updates == sum(not (math.isfinite(row[0]) and math.isfinite(norm)) for row, norm in rows)


def test_a_skipped_update_has_no_part_in_the_means() -> None:
    good = (0.5, 20.0, 10, 11.0, 1.0, 2.0, 1.5)
    alone = report(BATCH, [update_of(good, 3.0)], 0, 0.1, 0, 0.5)
    for bad in ((math.nan,) * 7, (math.inf, *good[1:])):
        both = report(BATCH, [update_of(good, 3.0), update_of(bad, math.inf)], 0, 0.1, 1, 0.5)
        assert both == msgspec.structs.replace(alone, skipped_updates=1, consecutive_skips=1)
    assert (alone.loss, alone.gradient_norm, alone.ratio_mean) == (0.5, 3.0, 1.1)


@pytest.mark.parametrize("equal_rewards", [True, False])
def test_a_token_that_became_impossible_is_reported_and_trained_on(
    model_dir: Path, sample_batch: MakeBatch, equal_rewards: bool
) -> None:
    """Loss and gradient are finite, KL(behaviour || target) is not: the real step, with one logit at -infinity."""
    batch = sample_batch(groups=1)
    batch = with_rewards(batch, (1.0,) * 4) if equal_rewards else batch
    impossible = batch.groups[0].trajectories[0].token_ids[0]
    learner = PolicyLearner.open(model_dir, settings())

    def never(_module: object, _inputs: object, logits: Tensor) -> Tensor:
        return logits.index_fill(-1, torch.tensor([impossible]), -math.inf)

    learner.policy.model.get_output_embeddings().register_forward_hook(never)
    made = learner.step(batch)
    assert_readable(made)
    assert (made.skipped_updates, made.policy_lag_kl) == (0, LARGEST)
