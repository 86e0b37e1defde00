"""What the scheduler needs to know of the settings, as plain numbers."""

from __future__ import annotations

import msgspec

from offbeat.settings import Settings
from offbeat.theory.autopilot import AutopilotSettings, settling
from offbeat.theory.pilot import mismatch_level


class Plan(msgspec.Struct, frozen=True):
    """Sizes in trajectories, times in seconds of run time.

    Example: Plan(group_size=8, batch_size=64, outstanding_limit=192, bound=2, live_versions=3, iterations=100)
    """

    group_size: int
    batch_size: int
    outstanding_limit: int
    bound: int
    live_versions: int
    iterations: int
    schedule: str = "multi-version"
    lanes: int = 1
    migration: str = "cache"
    legacy_fill: bool = False
    evicts: bool = False
    rebalance_seconds: float = 5.0
    cache_tokens: int | None = None
    evaluate_every: int = 0
    time_limit_seconds: float | None = None
    lease_seconds: float = 60.0
    stall_seconds: float = 180.0
    max_attempts: int = 4
    max_quarantined_in_a_row: int = 8
    max_consecutive_skips: int = 5
    autopilot: AutopilotSettings | None = None

    @property
    def groups_per_batch(self) -> int:
        return self.batch_size // self.group_size


def plan_from(settings: Settings) -> Plan:
    schedule, run, learner = settings.schedule, settings.run, settings.learner
    return Plan(
        group_size=schedule.group_size,
        batch_size=schedule.train_batch_size,
        outstanding_limit=schedule.outstanding_limit,
        bound=schedule.staleness_bound,
        live_versions=schedule.live_versions,
        iterations=learner.iterations,
        schedule=schedule.name,
        lanes=settings.rollout.lanes,
        migration=schedule.migration,
        legacy_fill=schedule.legacy_fill,
        evicts=schedule.at_bound == "evict",
        rebalance_seconds=schedule.rebalance_seconds,
        cache_tokens=settings.rollout.cache_tokens,
        evaluate_every=run.evaluate_every,
        time_limit_seconds=run.time_limit_seconds,
        lease_seconds=run.lease_seconds,
        stall_seconds=run.stall_seconds,
        max_attempts=run.max_attempts,
        max_quarantined_in_a_row=run.max_quarantined_in_a_row,
        max_consecutive_skips=learner.max_consecutive_skips,
        autopilot=_autopilot(settings) if learner.autopilot else None,
    )


def _autopilot(settings: Settings) -> AutopilotSettings:
    """Where the schedule keeps no bound that could be lowered, staleness is no lever."""
    schedule = settings.schedule
    bound = schedule.staleness_bound
    return AutopilotSettings(
        level=mismatch_level(settings.learner.objective.ratio_bounds),
        settle=settling(bound),
        most_staleness=bound if schedule.name == "multi-version" else 1,
    )
