"""A whole comparison: make the runs, measure them, write the page. Knows the other files of this room only."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from offbeat.backends.forking import shared_libraries
from offbeat.comparison.contestants import Contestant, Order
from offbeat.comparison.measures import Measures, measure
from offbeat.comparison.page import html
from offbeat.comparison.result import Entry, entries, to_json
from offbeat.comparison.runs import LOG_NAME, Ours, check_same_start, make_run
from offbeat.errors import RunDirectoryError, SettingsError
from offbeat.locks import hold
from offbeat.report.page import write_page
from offbeat.report.read import Run

PAGE_NAME = "comparison.html"


@dataclass(frozen=True)
class Comparison:
    entries: list[Entry]
    page: Path
    json: dict[str, Any]


def _say_after(label: str, say: Callable[[str], None], words: str) -> None:
    say(label + words)


def compare(directory: Path, order: Order, warmup: int, say: Callable[[str], None]) -> Comparison:
    """Raises SettingsError before anything is written, RunFailed where a run fails; give the same order again to go
    on where an interrupted comparison stopped."""
    planned = order.contestants()
    least = max(c.settings.schedule.staleness_bound for c in planned) + 1 + warmup + 2
    if warmup < 1 or order.iterations < least:
        raise SettingsError(
            f"--iterations {order.iterations}: with --warmup {warmup} (at least 1) there is no steady part; give at"
            f" least {least}"
        )
    ours = not directory.exists() or (directory / LOG_NAME).exists()
    if not ours and (directory.is_file() or any(directory.iterdir())):
        raise RunDirectoryError(f"--out {directory}: exists and is no comparison; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    lock = hold(directory / LOG_NAME, str(directory))
    try:
        with shared_libraries() as added:
            return _compare(directory, order, planned, Ours(lock, added), warmup, say)
    finally:
        os.close(lock)


def _compare(
    directory: Path, order: Order, planned: list[Contestant], ours: Ours, warmup: int, say: Callable[[str], None]
) -> Comparison:
    measured: dict[Contestant, Measures] = {}
    runs: dict[Contestant, Run] = {}
    for place, contestant in enumerate(planned, start=1):
        label = f"run {place} of {len(planned)}: "
        runs[contestant] = make_run(directory, order.config, contestant, ours, partial(_say_after, label, say))
        measured[contestant] = measure(runs[contestant], warmup)
    check_same_start(runs)
    found = entries(measured)
    shown = {
        entry.schedule: next(r for c, r in runs.items() if (c.schedule, c.split) == (entry.schedule, entry.split))
        for entry in found
    }
    page = directory / PAGE_NAME
    write_page(page, html(found, shown, warmup))
    return Comparison(found, page, to_json(found, measured) | {"page": str(page)})
