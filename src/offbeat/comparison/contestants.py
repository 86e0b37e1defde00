"""Who runs in a comparison: one schedule with one split of the cores, everything else the same for all.

*Best split rule*: every schedule runs with one thread a worker and with as many as the cores allow it (where lanes and
learner take turns, each may have all of them), and the faster run counts. `repack`, which needs several lanes, runs
with the slots split among two and among four of them in one process. Pure: starts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, get_args

from offbeat.errors import SettingsError
from offbeat.settings import ScheduleSettings, Settings, load_settings
from offbeat.settings_sections import SPLICING

SCHEDULES: tuple[str, ...] = get_args(ScheduleSettings.model_fields["name"].annotation)
"""In the order of the settings; the first is what others are compared with."""
SET_HERE = {
    "schedule.name": "use --schedules",
    "learner.iterations": "use --iterations",
    "run.threads": "it tries what the cores allow",
    "run.evaluate_every": "it evaluates before and after only",
}
TAKE_TURNS = frozenset({"sync", "partial"})


class Split(NamedTuple):
    """`threads` of each worker; `parts` into which each lane of the config is split, all in its process."""

    threads: int
    parts: int = 1

    def __str__(self) -> str:
        return f"{self.threads}" + (f", {self.parts} lanes" if self.parts > 1 else "")


@dataclass(frozen=True, eq=False)
class Contestant:
    """One run to be made: `overrides` on top of the config give `settings`."""

    schedule: str
    split: Split
    repeat: int
    overrides: tuple[str, ...]
    settings: Settings

    @property
    def name(self) -> str:
        parts = f"-{self.split.parts}-parts" if self.split.parts > 1 else ""
        return f"{self.schedule}{parts}-{self.split.threads}-threads-repeat-{self.repeat}"


@dataclass(frozen=True)
class Order:
    """What the user asked for. Repeat r has seed `run.seed` + r."""

    config: Path | None
    overrides: tuple[str, ...]
    schedules: tuple[str, ...] = SCHEDULES
    iterations: int = 60
    repeats: int = 1
    cores: int = 2

    def contestants(self) -> list[Contestant]:
        """All runs in the order in which they are to be made: repeat by repeat, so that each compares like with like.

        Raises SettingsError for an unknown schedule, one named twice, and settings that do not go with one.
        """
        for name in self.schedules:
            if name not in SCHEDULES:
                raise SettingsError(f"--schedules {name}: unknown schedule; use {','.join(SCHEDULES)}")
            if self.schedules.count(name) > 1:
                raise SettingsError(f"--schedules {name}: named twice; name each schedule once")
        base = self._base()
        return [
            self._contestant(base, name, Split(threads, parts), repeat)
            for repeat in range(self.repeats)
            for name in self.schedules
            for threads in thread_splits(name, self.cores, base.rollout.processes)
            for parts in lane_splits(name, base)
        ]

    def _base(self) -> Settings:
        for override in self.overrides:
            key = override.partition("=")[0].strip()
            if key in SET_HERE:
                raise SettingsError(f"--set {override}: a comparison sets {key} itself; {SET_HERE[key]}")
        base = load_settings(self.config, list(self.overrides))
        limit = base.run.time_limit_seconds
        if limit is not None:
            raise SettingsError(
                f"run.time_limit_seconds = {limit:g}: a comparison runs equally many iterations of each; remove it"
            )
        return base

    def _contestant(self, base: Settings, schedule: str, split: Split, repeat: int) -> Contestant:
        """Evaluations in between are left out: they would take a different share of each schedule's time."""
        overrides = (
            *self.overrides,
            f"schedule.name={schedule}",
            *_fitting(base, schedule),
            *_in_parts(base, split.parts),
            f"run.threads={split.threads}",
            f"run.seed={base.run.seed + repeat}",
            "run.evaluate_every=0",
            f"learner.iterations={self.iterations}",
        )
        return Contestant(schedule, split, repeat, overrides, load_settings(self.config, list(overrides)))


def lane_splits(schedule: str, base: Settings) -> list[int]:
    """Into how many lanes each lane of the config is split: one that repacks has nothing to do with a single lane."""
    if schedule != "repack" or base.rollout.lanes > 1:
        return [1]
    return [parts for parts in (2, 4) if base.rollout.slots >= parts * base.schedule.group_size] or [2]


def _in_parts(base: Settings, parts: int) -> list[str]:
    lanes = base.rollout.lanes * parts
    slots = max(1, base.rollout.slots // parts)
    together = f"rollout.lanes_per_process={base.rollout.lanes_per_process * parts}"
    return [f"rollout.lanes={lanes}", together, f"rollout.slots={slots}"] if parts > 1 else []


def thread_splits(schedule: str, cores: int, processes: int) -> list[int]:
    """Threads of a worker that are tried under this schedule: one, and as many as there are cores for each worker
    that is at work at the same time (all rollout processes, or all of them beside the learner).
    """
    at_once = cores // processes if schedule in TAKE_TURNS else cores // (processes + 1)
    return sorted({1, max(1, at_once)})


def _fitting(base: Settings, schedule: str) -> list[str]:
    """What a setting of one schedule becomes under another that cannot have as much, or as little, of it."""
    given, found = base.schedule, []
    most = given.model_copy(update={"name": schedule, "rollout_batch_size": None}).outstanding_limit
    if given.rollout_batch_size is not None:
        found.append(f"schedule.rollout_batch_size={min(given.rollout_batch_size, most)}")
    if given.max_versions == 1 and schedule in SPLICING:
        found.append("schedule.max_versions=2")
    if given.at_bound == "evict" and schedule != "multi-version":
        found.append("schedule.at_bound=drain")
    return found
