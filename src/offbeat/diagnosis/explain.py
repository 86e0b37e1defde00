"""What went wrong, or is going wrong, in a run: every finder asked, the worst first. A healthy run yields nothing.

A finder is a pure function of a case; a new kind of trouble is a new finder in `FINDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.diagnosis import flow, learning, processes, prompts
from offbeat.diagnosis.case import Case
from offbeat.diagnosis.finding import Finding, findings_in_words, worst_first
from offbeat.report.sections import duration

Finder = Callable[[Case], Iterable[Finding]]

FINDERS: tuple[Finder, ...] = (
    processes.files,
    processes.disk_full,
    processes.ending,
    processes.stood_still,
    processes.lost_and_silent_lanes,
    processes.learner_trouble,
    learning.collapsed,
    learning.not_finite,
    learning.collapse_signature,
    prompts.poison_prompts,
    prompts.deadly_prompts,
    prompts.runaway_lengths,
    prompts.zero_advantage,
    prompts.slow_reward,
    flow.bound_binds,
    flow.learner_starved,
    flow.lanes_starved,
    flow.cache_pressure,
    flow.evictions,
)


@dataclass(frozen=True)
class Explanation:
    """Of one run at one moment. `state` is `Case.state`."""

    run: Path
    state: str
    iterations: int
    goal: int
    seconds: float
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """What `offbeat explain --json` prints."""
        return {
            "run": str(self.run),
            "state": self.state,
            "iterations": self.iterations,
            "goal": self.goal,
            "run_seconds": self.seconds,
            "healthy": not self.findings,
            "findings": [finding.to_json() for finding in self.findings],
        }


def explain(case: Case) -> Explanation:
    """Ask every finder."""
    findings = worst_first(finding for finder in FINDERS for finding in finder(case))
    goal = case.run.settings.learner.iterations
    return Explanation(case.run.directory, case.state, len(case.reports), goal, case.run.wall_seconds, findings)


def words(explained: Explanation) -> Iterator[str]:
    """The explanation for people, line by line."""
    done = f"{explained.iterations} of {explained.goal} iterations in {duration(explained.seconds)} of run time"
    yield f"{explained.run}: {explained.state}, {done}"
    if not explained.findings:
        yield "Nothing is wrong with it."
    yield from findings_in_words(explained.findings)
