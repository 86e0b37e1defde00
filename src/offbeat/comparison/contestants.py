"""Who runs in a comparison: one schedule with one split of the cores, everything else the same for all.

*Best split rule*: a schedule whose lanes and learner take turns may give every core to each of them; it runs with
one thread and with all, and the faster one counts. Where both run at once, each has one thread. Pure: starts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from offbeat.errors import SettingsError
from offbeat.settings import Settings, load_settings

SCHEDULES = ("multi-version", "sync", "one-step-off", "partial", "in-flight")
TAKE_TURNS = frozenset({"sync", "partial"})


@dataclass(frozen=True, eq=False)
class Contestant:
    """One run to be made: `overrides` on top of the config give `settings`. `threads` are those of each worker."""

    schedule: str
    threads: int
    repeat: int
    overrides: tuple[str, ...]
    settings: Settings

    @property
    def name(self) -> str:
        return f"{self.schedule}-{self.threads}-threads-repeat-{self.repeat}"


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
        return [
            self._contestant(name, threads, repeat)
            for repeat in range(self.repeats)
            for name in self.schedules
            for threads in thread_splits(name, self.cores)
        ]

    def _contestant(self, schedule: str, threads: int, repeat: int) -> Contestant:
        """Evaluations in between are left out: they would take a different share of each schedule's time."""
        base = load_settings(self.config, list(self.overrides))
        overrides = (
            *self.overrides,
            f"schedule.name={schedule}",
            f"run.threads={threads}",
            f"run.seed={base.run.seed + repeat}",
            "run.evaluate_every=0",
            f"learner.iterations={self.iterations}",
        )
        return Contestant(schedule, threads, repeat, overrides, load_settings(self.config, list(overrides)))


def thread_splits(schedule: str, cores: int) -> list[int]:
    """Threads of a worker that are tried under this schedule."""
    return sorted({1, cores}) if schedule in TAKE_TURNS else [1]
