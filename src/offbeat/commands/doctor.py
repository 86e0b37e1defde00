"""`offbeat doctor`: is this machine fit to train, and what to do where it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def doctor(
    ray: Annotated[
        str | None, typer.Option("--ray", help="Ask a Ray cluster, auto or HOST:PORT; default RAY_ADDRESS, if set.")
    ] = None,
    vllm: Annotated[str | None, typer.Option("--vllm", help="Ask a vLLM server at this http or https URL.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else there.")
    ] = False,
) -> None:
    """Check versions, devices, memory, disk, limits and servers; exit code 1 where training is impossible."""
    from offbeat.diagnosis.doctor import examine, facts_in_words
    from offbeat.diagnosis.finding import findings_in_words
    from offbeat.diagnosis.machine import look_around
    from offbeat.diagnosis.servers import check_addresses
    from offbeat.errors import SettingsError

    check_addresses(ray, vllm)
    try:
        here = Path.cwd()
    except OSError as error:
        raise SettingsError(f"the current directory: {error.strerror}; go to the one that runs are to lie in") from None
    machine = look_around(here, ray, vllm)
    findings = examine(machine)
    possible = not any(finding.severity == "error" for finding in findings)
    if as_json:
        import msgspec

        facts = msgspec.to_builtins(machine._asdict())
        facts["packages"] = {package.name: package.found for package in machine.packages}
        typer.echo(json.dumps({"ok": possible, "facts": facts, "findings": [f.to_json() for f in findings]}))
    else:
        for line in (*facts_in_words(machine), *findings_in_words(findings)):
            typer.echo(line)
        typer.echo("Training is possible here." if possible else "Training is not possible here.")
    if not possible:
        raise typer.Exit(1)
