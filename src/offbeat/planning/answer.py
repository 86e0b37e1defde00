"""From a run directory to a plan and its page. Refuses, in one line, a run that cannot be a pilot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from offbeat.errors import RunDirectoryError
from offbeat.planning.page import html
from offbeat.planning.pilot import pilot_steps
from offbeat.report.page import write_page
from offbeat.report.read import read_run
from offbeat.theory.pilot import edge_level, estimate
from offbeat.theory.planner import Plan, plan

PAGE_NAME = "plan.html"


def answer(
    directory: Path, staleness: int | None, steps: int | None, out: Path | None, said: Callable[[int, int], None]
) -> tuple[Plan, Path]:
    """The plan for `staleness` and `steps` (by default those of the run) and where its page was written.

    Raises RunDirectoryError or WeightsError where the run cannot be read or estimated from; nothing is written then.
    """
    run = read_run(directory)
    try:
        level = edge_level(run.settings.learner.objective.ratio_bounds)
        found = estimate(pilot_steps(run, said), level, run.settings.run.seed)
    except ValueError as error:
        raise RunDirectoryError(f"run {directory}: cannot be a pilot: {error}") from None
    settings = run.settings
    made = plan(
        found,
        settings.schedule.staleness_bound if staleness is None else staleness,
        settings.learner.iterations if steps is None else steps,
    )
    page = out or directory / PAGE_NAME
    write_page(page, html(run, made))
    return made, page
