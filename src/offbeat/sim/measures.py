"""What a simulated run is measured by: an observer of events and commands, and the numbers that come of them.

*Steady part*: from the publish that ends the warm-up to where work runs out: a run issues no more than it will consume,
so its last batches find emptier slots. An iteration lasts from publish to publish; *rollout only* is its part during
which the learner did not train. Numbers come from events and commands, but for slot time and moved bytes, which the
world counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from offbeat import events as e
from offbeat.flow.staleness import staleness
from offbeat.sim.cluster import Cluster
from offbeat.sim.world import SimWorld


class Step(NamedTuple):
    """One RL iteration: published at `ended`, trained from `began`; sums over its batch, lengths in tokens."""

    began: float
    ended: float
    trajectories: int
    tokens: int
    prompt_tokens: int
    longest: int
    staleness: dict[int, int]
    slot_seconds: float
    moved_bytes: float

    @property
    def bubble(self) -> float:
        """(max - mean) / max of the lengths of the batch (DORA v2, App. C.3)."""
        return 1 - self.tokens / self.trajectories / self.longest if self.longest else 0.0


class Measures:
    """Feed it to `loop.run` as an observer; `result()` afterwards. `progress` hears how many iterations are done."""

    def __init__(
        self, cluster: Cluster, world: SimWorld, schedule: str, progress: Callable[[int], None] | None = None
    ) -> None:
        self.progress = progress
        self.cluster = cluster
        self.ahead = -(-cluster.outstanding_limit(schedule) // cluster.schedule.train_batch_size)
        self.world = world
        self.size = cluster.schedule.group_size
        self.steps: list[Step] = []
        self.evicted = 0
        self.losses = 0
        self._versions: dict[int, int] = {}
        self._longest: dict[int, int] = {}
        self._staleness: dict[int, int] = {}
        self._batch_longest = 0

    def saw(self, event: e.Event, now: float, commands: Sequence[e.Command]) -> None:
        if isinstance(event, e.Finished):
            group = event.trajectory_id // self.size
            if event.tokens > self._longest.get(group, 0):
                self._longest[group] = event.tokens
            versions = self._versions
            if event.version < versions.get(group, 1 << 62):
                versions[group] = event.version
        elif isinstance(event, e.Trained):
            self._trained(event)
            if self.progress is not None:
                self.progress(event.version)
        elif isinstance(event, e.LaneLost):
            self.losses += 1
        for command in commands:
            if type(command) is e.Train:
                self._takes(command)
            elif isinstance(command, e.Evict | e.Quarantine):
                self.evicted += isinstance(command, e.Evict)
                self._longest.pop(command.group_id, None)
                self._versions.pop(command.group_id, None)

    def _takes(self, command: e.Train) -> None:
        """A batch handed out; one handed out again, to a learner that was lost, has been counted."""
        if command.group_ids[0] not in self._versions:
            return
        self._staleness = {}
        self._batch_longest = 0
        for group in command.group_ids:
            stale = staleness(command.iteration, self._versions.pop(group))
            self._staleness[stale] = self._staleness.get(stale, 0) + self.size
            self._batch_longest = max(self._batch_longest, self._longest.pop(group))

    def _trained(self, event: e.Trained) -> None:
        report, world = event.report, self.world
        busy = world.busy_slot_seconds()
        self.steps.append(
            Step(
                event.started,
                event.ended,
                report.trajectories,
                report.tokens,
                report.prompt_tokens,
                self._batch_longest,
                self._staleness,
                busy,
                world.moved_bytes,
            )
        )

    def result(self) -> dict[str, Any]:
        """The numbers of `offbeat simulate --json` for one schedule."""
        warmup = self.cluster.run.warmup
        counted = self.steps[warmup:][: max(1, len(self.steps) - warmup - self.ahead)]
        start = self.steps[warmup - 1] if warmup else None
        began = start.ended if start else 0.0
        seconds = counted[-1].ended - began
        trained = sum(step.ended - step.began for step in counted)
        trajectories = sum(step.trajectories for step in counted)
        histogram: dict[int, int] = {}
        for step in counted:
            for stale, count in step.staleness.items():
                histogram[stale] = histogram.get(stale, 0) + count
        slots = len(self.world.lanes) * self.world.slots
        busy = counted[-1].slot_seconds - (start.slot_seconds if start else 0.0)
        moved = counted[-1].moved_bytes - (start.moved_bytes if start else 0.0)
        return {
            "step_minutes": seconds / len(counted) / 60,
            "rollout_only_minutes": (seconds - trained) / len(counted) / 60,
            "trajectories_per_second": trajectories / seconds,
            "tokens_per_second": sum(s.tokens + s.prompt_tokens for s in counted) / seconds,
            "slots_busy": busy / (slots * seconds),
            "bubble": sum(step.bubble for step in counted) / len(counted),
            "staleness_mean": sum(s * n for s, n in histogram.items()) / trajectories,
            "staleness_max": max(histogram),
            "staleness_histogram": {str(s): histogram[s] / trajectories for s in sorted(histogram)},
            "learner_idle": 1 - trained / seconds,
            "moved_bytes": moved,
            "iterations_counted": len(counted),
            "evicted_groups": self.evicted,
            "lanes_lost": self.losses,
            "length_trained": sum(s.tokens for s in counted) / trajectories,
            "lanes": len(self.world.lanes),
            "learner_accelerators": self.world.learner.accelerators,
        }
