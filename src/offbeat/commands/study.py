"""`offbeat study`: one claim about stability measured as a grid of short runs, kept, resumed, and put on a page."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.errors import SettingsError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from offbeat.studies.cell import Cell

NAMES = "bias, collapse, two-constraint, gac, lag-one"


def study(
    name: Annotated[str, typer.Argument(help=f"One of {NAMES}.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each cell; 5 or more are evidence.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed; others repeat a study on new runs.")] = 0,
    smoke: Annotated[bool, typer.Option("--smoke", help="Tiny grid and runs: does it work? Not evidence.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Directory of the study; the same one goes on.")] = None,
    reuse: Annotated[
        list[Path] | None, typer.Option("--reuse", help="Another study's directory: take over the same cells of it.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes; without a value one a core.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else there.")
    ] = False,
) -> None:
    """Measure a claim about stability: many short runs at exact staleness, one page with verdicts by declared rules."""
    from rich.console import Console

    from offbeat.studies.registry import design

    chosen = design(name)
    if chosen is None:
        raise SettingsError(f"study {name}: unknown; use one of {NAMES}")
    directory = out or Path("out") / f"study-{name}-{datetime.now():%Y%m%d-%H%M%S}"
    from offbeat.studies.page import write_study
    from offbeat.studies.study import conduct

    console = Console(stderr=True)
    progress = _bar(console)
    try:
        outcome = conduct(chosen, directory, seeds, smoke, _Watch(progress), reuse or [], workers, first_seed)
    finally:
        progress.stop()
    page = write_study(outcome)
    if as_json:
        typer.echo(json.dumps(outcome.to_json() | {"page": str(page)}))
    for words in filter(None, (outcome.caution, *outcome.findings.verdicts)):
        console.print(words, highlight=False)
    console.print(f"page: {page}", highlight=False)


def _bar(console: object) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    assert isinstance(console, Console)
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn(),
        TimeRemainingColumn(), console=console,
    )  # fmt: skip


LINE_SECONDS = 10.0
"""Where standard error is no terminal, a line so often."""


class _Watch:
    """Progress over steps, for cells differ in length; a line for each finished cell."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task("start policy", total=1.0)
        self._cells = self._done = 0
        self._under_way: dict[str, int] = {}
        self._due = 0.0

    def preparing(self, note: str, share: float) -> None:
        self._progress.start()
        self._progress.update(self._task, description=note, completed=share)
        self._line()

    def took_over(self, directory: Path, cells: int) -> None:
        self._progress.console.print(f"{cells} cells taken over from {directory}", style="dim", highlight=False)

    def begins(self, cells: int, kept: int, steps: int) -> None:
        self._cells, self._done = cells, kept
        self._progress.start()
        self._progress.reset(self._task, total=max(1, steps), completed=int(not steps), description=self._words())

    def stepped(self, cell: Cell, done: int, total: int) -> None:
        ahead = done - self._under_way.get(cell.key, 0)
        self._under_way[cell.key] = done
        self._progress.update(self._task, advance=ahead)
        self._line()

    def finished(self, cell: Cell, seconds: float) -> None:
        self._done += 1
        rest = cell.steps - self._under_way.pop(cell.key, 0)
        self._progress.update(self._task, advance=rest, description=self._words())
        self._progress.console.print(f"{cell.name}: {seconds:.1f} s", style="dim", highlight=False)

    def _line(self) -> None:
        if not self._progress.console.is_terminal and monotonic() >= self._due:
            task = self._progress.tasks[self._task]
            words = f"{task.description}, {task.percentage:.0f} %"
            self._progress.console.print(words, highlight=False, markup=False, soft_wrap=True)
            self._due = monotonic() + LINE_SECONDS

    def _words(self) -> str:
        return f"cell {self._done} of {self._cells}"
