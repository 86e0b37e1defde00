"""The nouns, frozen. One spelling each, used by every room.

A *version* is the number of publishes before it; sizes are counted in trajectories. Every log-prob's name
says whose it is: *behaviour* (the version that sampled) or *target* (the policy in training).
This file knows no torch, no clock and no file.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length"]


LEAST_TEMPERATURE = 1e-3
"""Logits of float32 are divided by it; far below, what they become is infinite. Only 0, greedy, is less."""


class Prompt(msgspec.Struct, frozen=True):
    """A question with its known answer. `prompt_id` is its position in the task's endless source.

    Example: Prompt(prompt_id=7, dataset="running-sum", text="12+30+5=", answer="42,47", token_ids=(3, 4, ...))
    """

    prompt_id: int
    dataset: str
    text: str
    answer: str
    token_ids: tuple[int, ...] = ()


class Span(msgspec.Struct, frozen=True):
    """A run of tokens [L] sampled by one version, with the log-probs [L] of the behaviour policy.

    `behaviour_support` [L] holds, only when top-k or top-p cut the distribution, the token ids that were kept
    at each position: the target policy must be normalised over the same ids for the ratio to mean anything.
    `loss_mask` [L] is False at tokens that were not sampled but given between two turns (by a tool, a template): they
    are context, never trained on; their log-prob is 0 and their support themselves. None: every token was sampled.
    """

    version: int
    token_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    behaviour_support: tuple[tuple[int, ...], ...] | None = None
    loss_mask: tuple[bool, ...] | None = None


def spans_from(spans: tuple[Span, ...], start: int) -> tuple[Span, ...]:
    """The spans without their first `start` tokens."""
    left = []
    for span in spans:
        if start < len(span.token_ids):
            support = span.behaviour_support
            kept = None if support is None else support[start:]
            left.append(Span(span.version, span.token_ids[start:], span.behaviour_logprobs[start:], kept))
        start = max(0, start - len(span.token_ids))
    return tuple(left)


class Trajectory(msgspec.Struct, frozen=True):
    """One sampled response: its spans in order. Under `sync` and `multi-version` there is exactly one span (C1).

    `attempt` tells a restarted trajectory from its earlier tries; only the current attempt may be scored. `reward` is
    what the environment of an episode gave at its end; None: the task is asked.
    """

    trajectory_id: int
    attempt: int
    spans: tuple[Span, ...]
    finish_reason: FinishReason
    text: str = ""
    reward: float | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(t for span in self.spans for t in span.token_ids)

    @property
    def behaviour_logprobs(self) -> tuple[float, ...]:
        return tuple(p for span in self.spans for p in span.behaviour_logprobs)

    @property
    def sampled_tokens(self) -> int:
        """Tokens that were sampled: all but those given between turns."""
        return sum(len(s.token_ids) if s.loss_mask is None else sum(s.loss_mask) for s in self.spans)

    @property
    def version(self) -> int:
        """The oldest version in the trajectory: the one that counts for staleness."""
        return min(span.version for span in self.spans)


class Adapter(msgspec.Struct, frozen=True):
    """What a version is made of where versions are LoRA adapters (arXiv 2106.09685): the base model's matrices W at
    `targets` become W + alpha / rank B A. `base` is the SHA-256 of the base model's weights file.

    It lies, as JSON, under `adapter` in the metadata of a version's model.safetensors; the tensors beside it have the
    names that peft gives them.
    """

    rank: int
    alpha: int
    targets: tuple[str, ...]
    base: str


class Group(msgspec.Struct, frozen=True):
    """The G scored trajectories of one prompt: the unit of GRPO. `rewards` [G] in trajectory order."""

    group_id: int
    prompt: Prompt
    trajectories: tuple[Trajectory, ...]
    rewards: tuple[float, ...]


class Batch(msgspec.Struct, frozen=True):
    """What one RL iteration consumes. `iteration` is the trainer's version while it trains on this batch."""

    iteration: int
    groups: tuple[Group, ...]


class Instruments(msgspec.Struct, frozen=True):
    """What tells of stability, measured in one iteration (docs/instruments.md). None: not measured, or nothing there.

    Drifts are Euclidean norms over all trained parameters, in parameter units. The trainer has version t before this
    iteration's updates and t + 1 after them; theta_v are the parameters of version v.
    """

    staleness_mean: float
    """Mean over trajectories, in publishes."""
    effective_sample_size: float | None
    """(sum w)^2 / (B sum w^2) in (0, 1], w = target / behaviour of whole trajectories, unclipped; mean over updates.
    None where every update was skipped."""
    clip_share_by_staleness: tuple[float | None, ...]
    """Index s: share of the tokens of trajectories of staleness s that the objective clips, truncates or masks."""
    lag_kl_by_staleness: tuple[float | None, ...]
    """Index s: KL(behaviour || target), k3 estimate, nats per token, of trajectories of staleness s."""
    rate_scale: float
    """What the learning rate was multiplied by (ESS, staleness), mean over updates; 1 where nothing does."""
    g_upd: float | None = None
    """|theta after an update - theta before it| / its learning rate, mean over the iteration's updates."""
    iteration_drift: float | None = None
    """|theta_{t+1} - theta_t|."""
    drift_from_start: float | None = None
    """|theta_{t+1} - theta_0|."""
    drift_by_staleness: tuple[float | None, ...] = ()
    """Index s: |theta_t - theta_{t-s}|, up to the largest staleness of the batch."""
    drift_exponent: float | None = None
    """gamma of |theta - theta_0| ~ (sum of rates)^gamma over the run so far: 1 ballistic, 0.5 diffusive."""

    @property
    def cycle_drift(self) -> float | None:
        """|theta_t - theta_v| for the oldest version v that sampled for this batch: the within-cycle drift."""
        return self.drift_by_staleness[-1] if self.drift_by_staleness else None


class StepAlignment(msgspec.Struct, frozen=True):
    """How an iteration's gradients lay to the ones before, and what was done about it (`learner.align`).

    Cosines are means over the updates where they are valid, None where none is: `cosine` of the gradient with the
    reference, `controlled` of what control made of it, `update` of consecutive changes of the parameters, `lags` of the
    gradient with the one so many updates before. `kept` is the mean share of the gradient's norm that control left.
    The counts are of updates: passed unmeasured (`invalid`), projected, skipped, and projected because too many had
    been skipped (`released`).
    """

    cosine: float | None = None
    controlled: float | None = None
    update: float | None = None
    kept: float = 1.0
    invalid: int = 0
    projected: int = 0
    skipped: int = 0
    released: int = 0
    lags: dict[int, float] = {}


class Gap(msgspec.Struct, frozen=True):
    """How far two log-probs of the same token are apart, in nats, over some tokens: the mean of |difference|, its 99th
    percentile, and the share of tokens beyond 0.1."""

    mean: float
    p99: float
    beyond: float


class Mismatch(msgspec.Struct, frozen=True):
    """behaviour against target, split in two, over `tokens` of an iteration's batch. `engine_error`: stated by the
    engine against computed by the learner under the very version that sampled. `policy_lag`: that against the target as
    the iteration begins. The one is numbers and kernels, the other is staleness."""

    tokens: int
    engine_error: Gap
    policy_lag: Gap


class StepReport(msgspec.Struct, frozen=True):
    """What one RL iteration did. Means are over tokens unless named otherwise; seconds are wall-clock.

    `skipped_updates` counts optimizer updates left out because the loss or gradient was not finite;
    `consecutive_skips` is the current run of such updates. `policy_lag_kl` estimates KL(behaviour || target)
    by k3, the mean of r - 1 - log r over tokens sampled by behaviour, r = target / behaviour: unbiased, never negative.
    `alignment` is None where `learner.align` is off.
    """

    iteration: int
    trajectories: int
    tokens: int
    prompt_tokens: int
    reward_mean: float
    reward_std: float
    zero_advantage_groups: int
    loss: float
    gradient_norm: float
    ratio_mean: float
    ratio_max: float
    clip_share: float
    policy_lag_kl: float
    entropy: float
    learning_rate: float
    skipped_updates: int
    consecutive_skips: int
    train_seconds: float
    publish_seconds: float
    instruments: Instruments | None = None
    """None in logs of versions that did not measure them."""
    alignment: StepAlignment | None = None
    mismatch: Mismatch | None = None
    """None where `learner.mismatch_trajectories` is 0 or the versions that sampled are not at hand any more."""
