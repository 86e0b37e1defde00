"""The command line. Bad input is one line on standard error and exit code 2; `--json` prints one object, nothing else.

Exit codes: 0 done, 1 the run failed or an audit found violations, 2 bad input, 130 interrupted (can be resumed).
Heavy imports happen inside commands, so that `--help` answers at once.
"""

from __future__ import annotations

import gc
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from offbeat import __version__, interrupts
from offbeat.commands.doctor import doctor
from offbeat.commands.explain import explain
from offbeat.commands.market import app as market
from offbeat.commands.models import models
from offbeat.commands.plan import plan
from offbeat.commands.serve import serve
from offbeat.commands.simulate import simulate
from offbeat.commands.study import study
from offbeat.errors import OffbeatError, SettingsError
from offbeat.garbage import SELDOM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from offbeat.events import Event
    from offbeat.live.rundir import OpenRun
    from offbeat.loop import Observer
    from offbeat.settings import Settings, Where

UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer carries click inside since 0.20, outside before


class Commands(typer.core.TyperGroup):
    """What is interrupted says so: typer itself ends without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _complain("interrupted")
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Commands,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Asynchronous reinforcement learning that keeps the stability of synchronous training.",
)

Config = Annotated[Path | None, typer.Argument(help="TOML settings; without it the built-in default.")]
Out = Annotated[Path | None, typer.Option("--out", help="Directory for the run; made, must not hold anything yet.")]
Resume = Annotated[Path | None, typer.Option("--resume", help="Go on with the interrupted run in this directory.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="section.key=value, may be repeated.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else there.")]
BackendName = Annotated[
    str | None, typer.Option("--backend", help="Where lanes and learner run, local or ray; same as run.backend.")
]
Address = Annotated[
    str | None, typer.Option("--address", help="The Ray cluster, auto or HOST:PORT; same as ray.address.")
]
LearnerProcesses = Annotated[
    int | None, typer.Option("--learner-processes", help="Of the learner, in this session; same as learner.processes.")
]
RunDirectory = Annotated[Path, typer.Argument(help="Directory of a run.")]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        typer.echo(f"offbeat {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


@app.command()
def train(
    config: Config = None,
    out: Out = None,
    resume: Resume = None,
    backend: BackendName = None,
    address: Address = None,
    learner_processes: LearnerProcesses = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Train a policy asynchronously, show progress, write a report."""
    from rich.console import Console

    from offbeat.settings import Where, load_settings

    with interrupts.raised():
        console = Console(stderr=True)
        where = Where(backend, address, learner_processes)
        if resume is not None:
            if config is not None or overrides or out is not None:
                raise SettingsError(
                    f"--resume {resume}: a resumed run keeps its settings; give no CONFIG, --out or --set"
                )
            outcome = _go_on(resume, None, where, console)
        else:
            settings = where.of(load_settings(config, overrides))
            directory = out or Path("out") / f"run-{datetime.now():%Y%m%d-%H%M%S}"
            outcome = _go_on(directory, settings, where, console)
        _finish(resume or directory, outcome, as_json, console)


def _go_on(directory: Path, settings: Settings | None, where: Where, console: Console) -> tuple[str, str]:
    """Run until it stops; (outcome, reason)."""
    from offbeat import wire
    from offbeat.live.rundir import LOG_NAME
    from offbeat.report.tensorboard import TensorBoard
    from offbeat.report.trackers import Tracker, wanted
    from offbeat.report.watch import Watch

    watching: list[Watch | TensorBoard | Tracker] = []

    def observers(opened: OpenRun) -> list[Observer]:
        watch = Watch(opened.settings, console)
        watching.append(watch)
        for _, now, event, commands in opened.log.events():
            watch.saw(event, now, commands)
        created = opened.log.meta("created")
        if opened.settings.run.tensorboard:
            watching.append(TensorBoard(directory, created, recorded(opened), _complain))
        for library in wanted(opened.settings):
            identity = created, opened.session
            watching.append(Tracker(library, directory, opened.settings, identity, recorded(opened), _complain))
        return [each.saw for each in watching]

    def recorded(opened: OpenRun) -> Iterator[tuple[Event, float]]:
        return ((event, now) for _, now, event, _ in opened.log.events())

    try:
        if settings is not None:
            wanted(settings)
            with Watch(settings, console) as watch:
                wire.start(directory, settings, watch.preparing)
        stop = wire.go_on(directory, observers, lambda words: console.print(words, style="dim"), where)
    except KeyboardInterrupt:
        if not (directory / LOG_NAME).is_file():
            raise
        _complain(f"interrupted; go on with: offbeat train --resume {directory}")
        raise typer.Exit(130) from None
    finally:
        for observer in watching:
            observer.close()
    return stop.outcome, stop.reason


def _finish(directory: Path, outcome: tuple[str, str], as_json: bool, console: Console) -> None:
    """Report, last words, exit code."""
    from offbeat.report.page import write_report
    from offbeat.report.read import read_run
    from offbeat.report.summary import closing_words, summary

    report = write_report(directory)
    result = summary(read_run(directory)) | {"report": str(report)}
    if as_json:
        typer.echo(json.dumps(result))
    console.print(closing_words(result), highlight=False)
    how, reason = outcome
    if how == "interrupted":
        _complain(f"{reason}; go on with: offbeat train --resume {directory}")
        raise typer.Exit(130)
    if how == "failed":
        _complain(f"{reason}; what was learned is kept: offbeat train --resume {directory}")
        raise typer.Exit(1)


@app.command()
def verify(
    run: RunDirectory,
    recompute: Annotated[int, typer.Option(min=0, help="Re-score so many trajectories under stored weights.")] = 0,
    seed: Annotated[int, typer.Option(help="Which ones are re-scored.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Audit a run from its log alone: C1, C2, C3, staleness, behaviour log-probs."""
    from rich.console import Console

    from offbeat.report.audit import audit
    from offbeat.report.read import read_run

    opened = read_run(run)
    found = audit(opened)
    if recompute:
        from offbeat.report.recompute import recompute as rescore

        with Console(stderr=True).status("") as status:

            def said(done: int, total: int) -> None:
                status.update(f"recomputed {done} of {total} trajectories")

            found = found.with_recomputed(recompute, *rescore(opened, recompute, seed, said))
    if as_json:
        typer.echo(json.dumps(found.to_json()))
    else:
        Console().print(found)
    if not found.ok:
        raise typer.Exit(1)


@app.command()
def report(
    run: RunDirectory,
    out: Annotated[Path | None, typer.Option("--out", help="The page to write; default DIR/report.html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the HTML report of a run, finished or not."""
    from offbeat.report.page import write_report

    page = write_report(run, out)
    typer.echo(json.dumps({"report": str(page)}) if as_json else str(page))


@app.command()
def compare(
    config: Config = None,
    out: Annotated[Path | None, typer.Option("--out", help="Directory for the runs; the same one goes on.")] = None,
    schedules: Annotated[str | None, typer.Option(help="Comma-separated; others are compared with the first.")] = None,
    iterations: Annotated[int, typer.Option(min=1, help="RL iterations of each run.")] = 60,
    warmup: Annotated[int, typer.Option(min=1, help="Iterations at the start that do not count.")] = 10,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each schedule, each repeat with the next seed.")] = 1,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Run schedules on the same task, model, seed and cores, one after the other, and show them side by side."""
    import os

    from rich.console import Console

    from offbeat.comparison.compare import compare as run_all
    from offbeat.comparison.contestants import SCHEDULES, Order
    from offbeat.comparison.table import table

    console = Console(stderr=True)
    names = tuple(name.strip() for name in schedules.split(",")) if schedules is not None else SCHEDULES
    order = Order(config, tuple(overrides or ()), names, iterations, repeats, len(os.sched_getaffinity(0)))
    directory = out or Path("out") / f"compare-{datetime.now():%Y%m%d-%H%M%S}"
    done = run_all(directory, order, warmup, lambda words: console.print(words, style="dim", highlight=False))
    console.print(table(done.entries))
    if as_json:
        typer.echo(json.dumps(done.json))
    console.print(f"page: {done.page}", highlight=False)


app.command()(explain)
app.command()(doctor)
app.command()(simulate)
app.command()(plan)
app.command()(study)
app.command()(serve)
app.add_typer(market, name="market")
app.add_typer(models, name="models")


def _complain(words: str) -> None:
    typer.echo(f"offbeat: {words}", err=True)


def main() -> None:
    """Entry point: turns every expected error into one line and its exit code."""
    gc.set_threshold(*SELDOM)
    try:
        code = app(standalone_mode=False)
    except UsageError as error:
        _complain(error.format_message() if isinstance(error, typer.BadParameter) else str(error))
        sys.exit(2)
    except typer.Abort:
        _complain("interrupted")
        sys.exit(130)
    except OffbeatError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _complain("interrupted")
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
