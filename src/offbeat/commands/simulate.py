"""`offbeat simulate`: schedules on a cluster that need not be there, side by side; a sweep; a calibration on a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from offbeat.sim.cluster import Cluster
    from offbeat.sim.kept import Kept
    from offbeat.sim.simulate import Simulated

ClusterName = Annotated[
    str | None, typer.Argument(help="TOML file or preset: dora-64, dora-128, longcat-4096, scale-16k.")
]
Schedules = Annotated[str | None, typer.Option(help="Comma-separated; others are compared with the first.")]
Calibrate = Annotated[
    Path | None, typer.Option("--calibrate", help="Fit the cluster to the first half of this run, predict the second.")
]
Sweep = Annotated[
    list[str] | None,
    typer.Option("--sweep", help="key=v1,v2,... of the cluster file, may be repeated: a grid. all: K, RBS/TBS, split."),
]
Keep = Annotated[
    Path | None,
    typer.Option("--keep", help="Keep the points of a sweep in this file, and take those that are there already."),
]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="section.key=value, may be repeated.")]
Page = Annotated[Path | None, typer.Option("--out", help="HTML page with timelines to write.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else there.")]
ALL = ("multi-version", "sync", "one-step-off", "partial", "in-flight", "repack")


def simulate(
    cluster: ClusterName = None,
    schedules: Schedules = None,
    calibrate: Calibrate = None,
    sweep: Sweep = None,
    keep: Keep = None,
    out: Page = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Predict what schedules do on a cluster, with the scheduler that a live run has."""
    from rich.console import Console

    from offbeat.report.page import check_page
    from offbeat.sim.cluster import load_cluster, overridden
    from offbeat.sim.kept import Kept
    from offbeat.sim.table import table

    if (cluster is None) == (calibrate is None):
        raise SettingsError("give a CLUSTER (a TOML file or a preset such as dora-64), or --calibrate RUN, not both")
    if keep is not None and not sweep:
        raise SettingsError(f"--keep {keep}: keeps the points of a --sweep; give one, or remove it")
    console = Console(stderr=True)
    names = schedule_names(schedules)
    grid = _grid(sweep)
    result: dict[str, Any] = {}
    if calibrate is not None:
        about, result["calibration"] = calibrated(calibrate, console)
        about = overridden(about, overrides or [])
    else:
        about = load_cluster(str(cluster), overrides)
    if out is not None:
        check_page(out)
    kept = Kept(keep)
    points = swept(about, names[0], grid, console, kept) if grid else None
    done = run_all(about, names, console, drawn=out is not None)
    console.print(table(about, done))
    if points is not None:
        result["sweep"] = told(points, console)
    if out is not None:
        from offbeat.sim.page import write_simulation

        write_simulation(out, about, done, points or [])
        console.print(f"page: {out}", highlight=False)
    if as_json:
        typer.echo(json.dumps(as_result(about, done) | result))


def schedule_names(text: str | None) -> tuple[str, ...]:
    """Raises SettingsError for one that does not exist or is named twice."""
    names = tuple(name.strip() for name in text.split(",")) if text is not None else ALL
    for name in names:
        if name not in ALL:
            raise SettingsError(f"--schedules {name}: no such schedule; choose from {', '.join(ALL)}")
    if len(set(names)) < len(names):
        raise SettingsError(f"--schedules {text}: one is named twice; name each once")
    return names


def _grid(texts: list[str] | None) -> dict[str, list[Any]]:
    from offbeat.sim.sweep import axes

    return axes(texts or [])


def run_all(cluster: Cluster, names: tuple[str, ...], console: Console, drawn: bool) -> list[Simulated]:
    from offbeat.sim.simulate import simulate as run

    done = []
    with _bars(console) as progress:
        for name in names:
            task = progress.add_task(name, total=cluster.run.iterations)

            def said(count: int, task: TaskID = task) -> None:
                progress.update(task, completed=count)

            done.append(run(cluster, name, said, drawn=drawn))
    return done


def swept(cluster: Cluster, schedule: str, grid: dict[str, list[Any]], console: Console, kept: Kept) -> list[Any]:
    from offbeat.sim.sweep import sweep

    with _bars(console) as progress:
        task = progress.add_task(f"sweep of {schedule}", total=None)

        def said(done: float, total: int) -> None:
            progress.update(task, completed=done, total=total)

        return list(sweep(cluster, schedule, grid, said, kept))


def told(points: list[Any], console: Console) -> dict[str, Any]:
    """Show a sweep and say what is best."""
    from offbeat.sim.sweep import best
    from offbeat.sim.table import sweep_table

    chosen, why = best(points)
    console.print(sweep_table(points, chosen))
    console.print("best: " + ", ".join(f"{k} = {v}" for k, v in chosen.values.items()) + f" — {why}", highlight=False)
    return {
        "points": [{"values": point.values, "result": point.result} for point in points],
        "best": chosen.values,
        "why": why,
    }


def calibrated(directory: Path, console: Console) -> tuple[Cluster, dict[str, Any]]:
    """The cluster that a run was on, and how well it predicts the second half of that run."""
    from offbeat.events import Trained
    from offbeat.flow.plan import plan_from
    from offbeat.report.read import read_run
    from offbeat.sim.calibrate import calibrate
    from offbeat.sim.halves import at_pace, interrupted, knowing_the_policy, middle, same_work, second_half
    from offbeat.sim.replay import replay
    from offbeat.sim.simulate import simulate as run

    opened = read_run(directory)
    rows = [(record.now, record.event, record.commands) for record in opened.records]
    half = middle(rows)
    prompts = [facts.tokens for facts in opened.prompts.values()]
    name = directory.resolve().name
    about = calibrate(rows, opened.settings, sum(prompts) / len(prompts), name, half)
    settings = opened.settings.schedule
    schedule, group, batch = settings.name, settings.group_size, settings.train_batch_size
    twin = replay(rows, plan_from(opened.settings))
    stood = interrupted(rows)
    measured = second_half([now for now, event, _ in rows if isinstance(event, Trained)], half, batch, stood)
    pace = same_work(rows, about, group, half)
    known = knowing_the_policy(rows, about, group, half)
    predicted, if_known, if_both = (
        second_half([step.ended for step in run(one, schedule).measures.steps], half, batch)
        for one in (about, known, at_pace(known, pace))
    )
    found = {
        "run": name,
        "schedule": schedule,
        "iterations_fitted": half,
        "decode": about.decode.model_dump(),
        "training": about.training.model_dump(),
        "publish_seconds": about.publish.setup_seconds,
        "scoring_seconds": about.scoring.seconds,
        "correlation": about.lengths.correlation,
        "growth_per_version": about.lengths.growth_per_version,
        "second_half_measured": measured,
        "second_half_predicted": predicted,
        "error": predicted / measured - 1,
        "error_knowing_the_policy": if_known / measured - 1,
        "error_knowing_policy_and_pace": if_both / measured - 1,
        "same_work": pace,
        "interrupted_iterations": len(stood),
        "twin": {"events": twin.events, "commands": twin.commands, "same": twin.differs is None},
    }
    console.print(
        f"{name}, {schedule}: second half {measured:.1f} trajectories/s measured, {predicted:.1f} predicted"
        f" ({predicted / measured - 1:+.1%}) from the first {half} iterations. Its later lengths and rewards known:"
        f" {if_known / measured - 1:+.1%}; and that the machine took {pace:.2f} times as long for the same training:"
        f" {if_both / measured - 1:+.1%}. Replayed from its durations:"
        f" {'the same commands' if twin.differs is None else f'other commands from event {twin.differs} on'}"
        f" in {twin.events:,} events.",
        highlight=False,
    )
    return about, found


@contextmanager
def _bars(console: Console) -> Iterator[Progress]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} / {task.total}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        yield progress


def as_result(cluster: Cluster, done: list[Simulated]) -> dict[str, Any]:
    return {
        "cluster": cluster.name,
        "accelerators": cluster.accelerators,
        "schedules": {one.schedule: one.result for one in done},
        "events": sum(one.events for one in done),
        "wall_seconds": sum(one.wall_seconds for one in done),
    }
