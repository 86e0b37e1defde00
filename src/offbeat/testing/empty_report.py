"""A step report for worlds without a model."""

from __future__ import annotations

from offbeat.records import StepReport

EMPTY_REPORT = StepReport(
    iteration=0,
    trajectories=0,
    tokens=0,
    prompt_tokens=0,
    reward_mean=0.0,
    reward_std=0.0,
    zero_advantage_groups=0,
    loss=0.0,
    gradient_norm=0.0,
    ratio_mean=1.0,
    ratio_max=1.0,
    clip_share=0.0,
    policy_lag_kl=0.0,
    entropy=0.0,
    learning_rate=0.0,
    skipped_updates=0,
    consecutive_skips=0,
    train_seconds=0.0,
    publish_seconds=0.0,
)
