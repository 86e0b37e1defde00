"""`offbeat plan`: the largest learning rate that a given staleness and length survive, from one short run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def plan(
    run: Annotated[Path, typer.Argument(help="Directory of a pilot run of 16 iterations or more.")],
    staleness: Annotated[
        int | None, typer.Option(min=0, help="Staleness S to plan for, in publishes; default the run's bound.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Length T to plan for, in iterations; default the run's.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The page to write; default RUN/plan.html.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else there.")
    ] = False,
) -> None:
    """Predict the largest stable learning rate, which limit binds, and the run's margin."""
    from rich.console import Console

    from offbeat.planning.answer import answer
    from offbeat.planning.page import sentence

    console = Console(stderr=True)
    with console.status("") as status:

        def said(done: int, total: int) -> None:
            status.update(f"read the weights of {done} of {total} iterations")

        made, page = answer(run, staleness, steps, out, said)
    if as_json:
        typer.echo(json.dumps(made.to_json() | {"page": str(page)}))
    console.print(sentence(made), highlight=False)
    console.print(f"page: {page}", highlight=False)
