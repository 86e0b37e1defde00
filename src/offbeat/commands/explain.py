"""`offbeat explain`: what went wrong, or is going wrong, in a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def explain(
    run: Annotated[Path, typer.Argument(help="Directory of a run: running, finished, crashed or damaged.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else there.")
    ] = False,
) -> None:
    """Say in plain words what went wrong or is going wrong in a run, on what evidence, and what to change."""
    from offbeat.diagnosis.explain import explain as examine
    from offbeat.diagnosis.explain import words
    from offbeat.diagnosis.reading import read_case

    explained = examine(read_case(run))
    if as_json:
        typer.echo(json.dumps(explained.to_json()))
        return
    for line in words(explained):
        typer.echo(line)
