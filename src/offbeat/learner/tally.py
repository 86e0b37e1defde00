"""What an iteration did, counted: sums per optimizer update, and the StepReport made of them.

*Finite-report invariant*: every number of a report is finite, for JSON has no other and the report goes to the run log.
Only a skipped update has a loss or gradient norm that is not finite, and none of its sums enters the means: they run
over the other updates (over their tokens); where all were skipped they are 0, and `skipped_updates` says why.
A statistic of the others can still be infinite (lag KL of a token that the target gives no probability at all): it is
written as LARGEST. Knows no model and no optimizer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import chain

import msgspec
import torch
from torch import Tensor

from offbeat.learner.alignment import Found, step_alignment
from offbeat.learner.batches import Sample
from offbeat.learner.objective import ObjectiveStatistics
from offbeat.learner.rates import effective_sample_size
from offbeat.records import Batch, Instruments, Mismatch, StepReport

LARGEST = torch.finfo(torch.float32).max
"""Stands for infinity in a report: what is computed in float32 is not larger."""


class Update:
    """The sums of one optimizer update, filled micro-batch by micro-batch and then closed."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._each: list[Tensor] = []
        self._ages: list[int] = []
        self.by_staleness: dict[int, tuple[float, float, float]] = {}
        """Response tokens, clipped tokens and k3 sum of the trajectories of each staleness."""
        self.effective_sample_size = 1.0
        self.staleness_sum = 0
        self.trajectories = 0
        self.rate_scale = 1.0
        self.g_upd: float | None = None
        self.loss = 0.0
        self.entropy_sum = 0.0
        self.tokens = 0.0
        self.ratio_sum = 0.0
        self.clipped = 0.0
        self.lag_kl_sum = 0.0
        self.ratio_max = 0.0
        self.gradient_norm = 0.0
        self.skipped = False
        self.alignment: Found | None = None

    def add(self, loss: Tensor, entropy_sum: Tensor, sums: ObjectiveStatistics, samples: Sequence[Sample]) -> None:
        """Take up one micro-batch, made of these trajectories in order; nothing is read from the tensors yet."""
        self._each.append(sums.trajectories)
        self._ages += [sample.staleness for sample in samples]
        row = (loss.detach().double(), entropy_sum, sums.tokens, sums.ratio_sum, sums.clipped, sums.lag_kl_sum)
        self._rows.append(torch.stack([*row, sums.ratio_max]))

    def leave_out(self, samples: Sequence[Sample]) -> None:
        """A micro-batch that another process takes up at this place."""
        self._each.append(torch.zeros(len(samples), 4, dtype=torch.float64))
        self._ages += [sample.staleness for sample in samples]
        self._rows.append(torch.zeros(7, dtype=torch.float64))

    def merge(self, total: Callable[[Tensor], Tensor]) -> None:
        """Take over what other processes counted: `total` adds up over all of them, who have the same places."""
        rows, each = torch.stack(self._rows), torch.cat(self._each)
        sums = total(torch.cat([rows.flatten(), each.flatten()]))
        self._rows = list(sums[: rows.numel()].view_as(rows))
        self._each = [sums[rows.numel() :].view_as(each)]

    def close(self, gradient_norm: float) -> None:
        """Add up. Skipped is an update whose loss or gradient norm is not finite."""
        rows = [row.tolist() for row in self._rows]
        (
            self.loss, self.entropy_sum, self.tokens, self.ratio_sum, self.clipped, self.lag_kl_sum
        ) = (sum(column) for column in list(zip(*rows, strict=True))[:6])  # fmt: skip
        self.ratio_max = max(row[6] for row in rows)
        self.gradient_norm = gradient_norm
        self.skipped = not (math.isfinite(self.loss) and math.isfinite(gradient_norm))
        each = torch.cat(self._each).tolist()
        for age, (tokens, clipped, lag_kl, _) in zip(self._ages, each, strict=True):
            before = self.by_staleness.get(age, (0.0, 0.0, 0.0))
            self.by_staleness[age] = (before[0] + tokens, before[1] + clipped, before[2] + lag_kl)
        self.trajectories, self.staleness_sum = len(each), sum(self._ages)
        self.effective_sample_size = effective_sample_size([row[3] for row in each])

    @property
    def staleness_mean(self) -> float:
        return self.staleness_sum / (self.trajectories or 1)


class Drift(msgspec.Struct, frozen=True):
    """What was measured of the parameters in one iteration: the fields of Instruments of these names."""

    iteration_drift: float | None = None
    drift_from_start: float | None = None
    drift_by_staleness: tuple[float | None, ...] = ()
    drift_exponent: float | None = None


def report(
    batch: Batch,
    updates: Sequence[Update],
    zero_advantage_groups: int,
    learning_rate: float,
    consecutive_skips: int,
    train_seconds: float,
    drift: Drift = Drift(),
    mismatch: Mismatch | None = None,
) -> StepReport:
    """The report of an iteration; `publish_seconds` is 0 until somebody publishes and says how long it took.

    `tokens` are response tokens; `prompt_tokens` count a prompt once per trajectory. `loss` and `gradient_norm` (before
    clipping) are means over updates. `reward_std` is the standard deviation of all rewards (divisor n).
    """
    done = [update for update in updates if not update.skipped]
    tokens = sum(update.tokens for update in done) or 1.0
    rewards = list(chain.from_iterable(group.rewards for group in batch.groups))
    made = StepReport(
        iteration=batch.iteration,
        trajectories=len(rewards),
        tokens=sum(len(trajectory.token_ids) for group in batch.groups for trajectory in group.trajectories),
        prompt_tokens=sum(len(group.prompt.token_ids) * len(group.trajectories) for group in batch.groups),
        reward_mean=statistics.fmean(rewards),
        reward_std=statistics.pstdev(rewards),
        zero_advantage_groups=zero_advantage_groups,
        loss=sum(update.loss for update in done) / (len(done) or 1),
        gradient_norm=sum(update.gradient_norm for update in done) / (len(done) or 1),
        ratio_mean=sum(update.ratio_sum for update in done) / tokens,
        ratio_max=max((update.ratio_max for update in done), default=0.0),
        clip_share=sum(update.clipped for update in done) / tokens,
        policy_lag_kl=sum(update.lag_kl_sum for update in done) / tokens,
        entropy=sum(update.entropy_sum for update in done) / tokens,
        learning_rate=learning_rate,
        skipped_updates=sum(update.skipped for update in updates),
        consecutive_skips=consecutive_skips,
        train_seconds=train_seconds,
        publish_seconds=0.0,
        instruments=_instruments(updates, done, drift),
        alignment=step_alignment([update.alignment for update in updates if update.alignment is not None]),
        mismatch=mismatch,
    )
    floats = {name: value for name, value in msgspec.structs.asdict(made).items() if isinstance(value, float)}
    return msgspec.structs.replace(made, **{name: _finite(value) for name, value in floats.items()})


def _instruments(updates: Sequence[Update], done: Sequence[Update], drift: Drift) -> Instruments:
    """Over the updates that were not skipped; staleness over all trajectories of the batch."""
    sums: dict[int, list[float]] = {}
    for update in done:
        for age, row in update.by_staleness.items():
            sums[age] = [a + b for a, b in zip(sums.get(age, [0.0] * 3), row, strict=True)]
    ages = range(max(sums, default=-1) + 1)
    of = [sums.get(age, [0.0] * 3) for age in ages]
    moved = [update.g_upd for update in done if update.g_upd is not None]
    return Instruments(
        staleness_mean=sum(u.staleness_sum for u in updates) / (sum(u.trajectories for u in updates) or 1),
        effective_sample_size=statistics.fmean(u.effective_sample_size for u in done) if done else None,
        clip_share_by_staleness=tuple(_finite(clipped / tokens) if tokens else None for tokens, clipped, _ in of),
        lag_kl_by_staleness=tuple(_finite(lag_kl / tokens) if tokens else None for tokens, _, lag_kl in of),
        rate_scale=statistics.fmean(u.rate_scale for u in done) if done else 1.0,
        g_upd=_finite(statistics.fmean(moved)) if moved else None,
        iteration_drift=_measured(drift.iteration_drift),
        drift_from_start=_measured(drift.drift_from_start),
        drift_by_staleness=tuple(map(_measured, drift.drift_by_staleness)),
        drift_exponent=_measured(drift.drift_exponent),
    )


def _measured(value: float | None) -> float | None:
    return None if value is None else _finite(value)


def _finite(value: float) -> float:
    """The number itself, at most LARGEST away from 0; LARGEST for what is not a number."""
    return LARGEST if math.isnan(value) else max(-LARGEST, min(LARGEST, value))
