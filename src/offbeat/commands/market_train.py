"""`offbeat market run` and `offbeat market sweep`: learn in the market, show progress, leave a directory and a page."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from offbeat.commands.market_options import AsJson

if TYPE_CHECKING:
    from rich.console import Console

    from offbeat.market.learners.settings import StudySettings

Config = Annotated[Path | None, typer.Argument(help="TOML settings; without it the built-in default.")]
Out = Annotated[Path | None, typer.Option("--out", help="Directory for the run; made, must not hold anything yet.")]
Resume = Annotated[Path | None, typer.Option("--resume", help="Go on with the interrupted run in this directory.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="section.key=value, may be repeated.")]
Cores = Annotated[int | None, typer.Option("--cores", min=1, help="Processes at most; default all cores.")]

SWEEP = ("market.rates=[0.5, 1.0, 2.0, 5.0]", "market.latencies=[0.0, 0.5, 1.0, 2.0]")
"""What a sweep without settings covers."""


def run(
    config: Config = None,
    out: Out = None,
    resume: Resume = None,
    overrides: Overrides = None,
    cores: Cores = None,
    as_json: AsJson = False,
) -> None:
    """Let firms learn prices in one market under several seeds; evaluate, force a deviation, write a report page."""
    _train("run", config, out, resume, overrides, cores, as_json)


def sweep(
    config: Config = None,
    out: Out = None,
    resume: Resume = None,
    overrides: Overrides = None,
    cores: Cores = None,
    as_json: AsJson = False,
) -> None:
    """Let firms learn over a grid of rates and latencies, all cells and seeds in one batch; phase diagram and page."""
    _train("sweep", config, out, resume, overrides, cores, as_json)


def _train(
    kind: Literal["run", "sweep"],
    config: Path | None,
    out: Path | None,
    resume: Path | None,
    overrides: list[str] | None,
    cores: int | None,
    as_json: bool,
) -> None:
    from rich.console import Console

    from offbeat.errors import SettingsError
    from offbeat.market.learners.runfile import begin, read_head
    from offbeat.market.learners.settings import load_study

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if resume is not None:
        if config is not None or overrides or out is not None:
            raise SettingsError(f"--resume {resume}: a resumed run keeps its settings; give no CONFIG, --out or --set")
        if (found := read_head(resume)["kind"]) != kind:
            raise SettingsError(f"--resume {resume}: holds a {found}; use offbeat market {found} --resume {resume}")
        directory = resume
    else:
        given = list(overrides or ())
        if kind == "sweep" and config is None:
            given = [*SWEEP, *given]
        study = load_study(config, given)
        if kind == "run" and len(study.cells) > 1:
            raise SettingsError(f"market.rates, market.latencies: {len(study.cells)} cells; use offbeat market sweep")
        directory = out or Path("out") / f"market-{kind}-{datetime.now():%Y%m%d-%H%M%S}"
        begin(directory, study, kind, _bounds(study))
    _go_on(directory, kind, cores, console)
    _finish(directory, as_json, console)


def _bounds(study: StudySettings) -> list[float | None]:
    from offbeat.market.learners.certificate import critic_bound

    return [critic_bound(study, rate) for rate, _ in study.cells]


def _go_on(directory: Path, kind: str, cores: int | None, console: Console) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from offbeat.market.learners.parts import train

    columns = (TextColumn("learning"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=None)
            train(directory, lambda done, total: progress.update(task, completed=done, total=total), cores)
    except KeyboardInterrupt:
        typer.echo(f"offbeat: interrupted; go on with: offbeat market {kind} --resume {directory}", err=True)
        raise typer.Exit(130) from None


def _finish(directory: Path, as_json: bool, console: Console) -> None:
    from offbeat.commands.market_run_page import run_page
    from offbeat.market.learners.outcome import outcome, told
    from offbeat.market.learners.runfile import read_market_run, write_whole

    found = read_market_run(directory)
    with console.status("") as status:
        cells = outcome(found, status.update)
    result = told(found, cells)
    result["page"] = str(run_page(directory / "report.html", found, cells))
    write_whole(directory / "outcome.json", json.dumps(result, indent=1))
    if as_json:
        typer.echo(json.dumps(result))
    for cell in cells:
        word = "" if cell.verdict is None else f", {cell.verdict.word}"
        lost = f", {cell.quiet.diverged} diverged" if cell.quiet.diverged else ""
        console.print(
            f"rate {cell.rate:g}, latency {cell.latency:g}: profit gain {cell.quiet.everyone} without noise, "
            f"{cell.noisy.everyone} with{lost}{word}"
        )
    nulls = ", ".join(f"{name} {value:.3f}" for name, value in result["null_gains"].items())
    console.print(f"profit gain of play that has learnt nothing: {nulls}")
    console.print(f"page: {result['page']}")
