"""What finders look at: a run's log as far as it can be read, its story, and the place it lies in.

Pure values: a case can be made by hand. Steps are RL iterations; times are seconds of run time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from offbeat import events as e
from offbeat.diagnosis.timing import Timing, timing_of
from offbeat.records import StepReport
from offbeat.report.read import Run
from offbeat.report.story import Story, tell


class Place(NamedTuple):
    """What the directory shows besides the log.

    `in_use`: a process of the run lives. `silent_seconds` since the log was last written. `checkpoint_damage`,
    `last_words` (of workers.log) and `log_damage` are empty where there is nothing to tell.
    """

    in_use: bool = False
    silent_seconds: float = 0.0
    free_bytes: int | None = None
    checkpoint_bytes: int | None = None
    checkpoint_damage: str = ""
    last_words: str = ""
    log_damage: str = ""


@dataclass(frozen=True)
class Case:
    run: Run
    place: Place = field(default_factory=Place)

    @cached_property
    def story(self) -> Story:
        return tell(self.run)

    @cached_property
    def reports(self) -> list[StepReport]:
        """Of every committed iteration, in order."""
        return [trained.report for _, _, trained in self.story.publishes]

    @cached_property
    def timing(self) -> Timing:
        return timing_of(self.run)

    @property
    def now(self) -> float:
        """Run time by now: in a run that lives, time has passed since its last event."""
        return self.run.wall_seconds + (self.place.silent_seconds if self.place.in_use else 0.0)

    @property
    def state(self) -> str:
        """`running`, `crashed` (nobody lives and nothing says why), `finished`, `interrupted` or `failed`."""
        outcome = self.story.outcome
        return "crashed" if outcome == "running" and not self.place.in_use else outcome

    @property
    def last_stop(self) -> tuple[int, e.Stop] | None:
        """(seq, Stop) where the newest session has ended with one."""
        return self.story.stops[-1] if self.story.stops and self.story.outcome != "running" else None

    @property
    def resume(self) -> str:
        return f"offbeat train --resume {self.run.directory}"
