"""`offbeat simulate`: schedules on a cluster that need not be there, side by side; a sweep; a calibration on a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console

    from offbeat.sim.cluster import Cluster
    from offbeat.sim.simulate import Simulated

ClusterName = Annotated[
    str | None, typer.Argument(help="TOML file or preset: dora-64, dora-128, longcat-4096, scale-16k.")
]
Schedules = Annotated[str | None, typer.Option(help="Comma-separated; others are compared with the first.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="section.key=value, may be repeated.")]
Page = Annotated[Path | None, typer.Option("--out", help="HTML page with timelines to write.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else there.")]
ALL = ("multi-version", "sync", "one-step-off", "partial", "in-flight", "repack")


def simulate(
    cluster: ClusterName = None,
    schedules: Schedules = None,
    out: Page = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Predict what schedules do on a cluster, with the scheduler that a live run has."""
    from rich.console import Console

    from offbeat.sim.cluster import load_cluster
    from offbeat.sim.table import table

    if cluster is None:
        raise SettingsError("CLUSTER is missing; give a TOML file, or a preset such as dora-64")
    console = Console(stderr=True)
    names = schedule_names(schedules)
    about = load_cluster(cluster, overrides)
    done = run_all(about, names, console)
    console.print(table(about, done))
    result: dict[str, Any] = as_result(about, done)
    if as_json:
        typer.echo(json.dumps(result))


def schedule_names(text: str | None) -> tuple[str, ...]:
    """Raises SettingsError for one that does not exist or is named twice."""
    names = tuple(name.strip() for name in text.split(",")) if text is not None else ALL
    for name in names:
        if name not in ALL:
            raise SettingsError(f"--schedules {name}: no such schedule; choose from {', '.join(ALL)}")
    if len(set(names)) < len(names):
        raise SettingsError(f"--schedules {text}: one is named twice; name each once")
    return names


def run_all(cluster: Cluster, names: tuple[str, ...], console: Console) -> list[Simulated]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from offbeat.sim.simulate import simulate as run

    done = []
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        for name in names:
            task = progress.add_task(name, total=cluster.run.iterations)
            done.append(run(cluster, name, lambda count, task=task: progress.update(task, completed=count)))
    return done


def as_result(cluster: Cluster, done: list[Simulated]) -> dict[str, Any]:
    return {
        "cluster": cluster.name,
        "accelerators": cluster.accelerators,
        "schedules": {one.schedule: one.result for one in done},
        "events": sum(one.events for one in done),
        "wall_seconds": sum(one.wall_seconds for one in done),
    }
