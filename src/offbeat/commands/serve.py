"""`offbeat serve`: an OpenAI-compatible endpoint over a run, finished or going on, or a model directory."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack, closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.errors import SettingsError

if TYPE_CHECKING:
    import socket

    from rich.console import Console

    from offbeat.serve.hub import Hub
    from offbeat.serve.options import ServeOptions
    from offbeat.serve.record import CallRecord
    from offbeat.serve.sources import Source

KEY_VARIABLE = "OFFBEAT_API_KEY"


class EngineName(StrEnum):
    local = "local"
    vllm = "vllm"


Directory = Annotated[Path, typer.Argument(help="Directory of a run, or a Hugging Face model directory.")]
Host = Annotated[str, typer.Option(help="Address to listen at; any but loopback needs a key.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: any that is free.")]
KeyFile = Annotated[Path | None, typer.Option(help=f"File that holds the API key; without it ${KEY_VARIABLE}, if set.")]
Name = Annotated[str | None, typer.Option(help="Name of the model; default the directory's.")]
Lanes = Annotated[int, typer.Option(min=1, max=64, help="Engines; each holds every version served.")]
Slots = Annotated[int, typer.Option(min=1, max=4096, help="Responses an engine decodes at once.")]
Threads = Annotated[int, typer.Option(min=1, max=256, help="Compute threads of an engine.")]
Context = Annotated[
    int | None, typer.Option(min=2, help="Longest prompt + response in tokens; default the run's, or 2048.")
]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, help="Longest response a call may ask for, in tokens; default the context.")
]
MaxCalls = Annotated[int, typer.Option(min=1, help="Responses under way or waiting at most.")]
MaxBody = Annotated[int, typer.Option(min=1, help="Largest request body in bytes.")]
MaxSessions = Annotated[int, typer.Option(min=1, help="Sessions pinned to a version at most.")]
Lease = Annotated[
    float, typer.Option(min=0.001, help="Seconds without a call after which a session loses its version.")
]
MaxVersions = Annotated[
    int | None,
    typer.Option(min=1, help="Versions that an engine holds at once; default 8, 1 where vLLM holds all weights."),
]
Engine = Annotated[EngineName, typer.Option(help="What samples; vllm needs its environment (make vllm).")]
KeepVersions = Annotated[
    int | None, typer.Option(min=1, help="Newest versions held though no session needs them; default 2.")
]
Record = Annotated[
    Path | None, typer.Option(help="File to append a JSON line to for every call, version and lost engine.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Once it answers, print one JSON object on standard output.")]


def serve(
    directory: Directory,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    key_file: KeyFile = None,
    name: Name = None,
    lanes: Lanes = 1,
    slots: Slots = 32,
    threads: Threads = 1,
    context: Context = None,
    max_tokens: MaxTokens = None,
    max_calls: MaxCalls = 256,
    max_body: MaxBody = 1 << 20,
    max_sessions: MaxSessions = 16384,
    lease: Lease = 600.0,
    max_versions: MaxVersions = None,
    keep_versions: KeepVersions = None,
    record: Record = None,
    engine: Engine = EngineName.local,
    as_json: AsJson = False,
) -> None:
    """Serve the versions of a run, or a model, to OpenAI clients; a session keeps the version it began with."""
    _require_extra()
    from rich.console import Console

    from offbeat.serve.address import Address
    from offbeat.serve.complaints import shown
    from offbeat.serve.options import default_options
    from offbeat.serve.record import CallRecord
    from offbeat.serve.sources import source_of

    address = Address(host, port, _key(key_file))
    address.check()
    if name is not None and (not name or "@" in name or len(name) > 128):
        raise SettingsError(f"--name {shown(name)}: not a usable name; give 1 to 128 characters, none of them an @")
    source = source_of(directory)
    options = default_options(
        source, engine, lanes=lanes, slots=slots, threads=threads, context=context, max_new_tokens=max_tokens,
        max_calls=max_calls, max_body_bytes=max_body, max_sessions=max_sessions, lease_seconds=lease,
        max_versions=max_versions, keep_versions=keep_versions,
    )  # fmt: skip
    console = Console(stderr=True)
    with ExitStack() as ends:
        sock = ends.enter_context(address.bind())
        if engine is EngineName.vllm:
            _with_vllm()
        book = None if record is None else ends.enter_context(closing(CallRecord(record, console.print)))
        _run(source, options, sock, address.key, name or source.name, book, engine, as_json, console)


def _with_vllm() -> None:
    """Go on in the Python that has vLLM, where this one has not. Raises SettingsError where there is none."""
    from importlib.util import find_spec

    from offbeat.backends.local import python_of
    from offbeat.backends.vllm.interpreter import vllm_python
    from offbeat.settings import RolloutSettings

    if find_spec("vllm") is None:
        command = [*python_of("offbeat.cli", vllm_python(RolloutSettings())), *sys.argv[1:]]
        os.execv(command[0], command)


def _key(file: Path | None) -> str:
    from offbeat.serve.address import check_key, read_key

    if file is not None:
        return read_key(file)
    key = os.environ.get(KEY_VARIABLE, "")
    return check_key(key, f"${KEY_VARIABLE}") if key else ""


def _run(
    source: Source,
    options: ServeOptions,
    sock: socket.socket,
    key: str,
    name: str,
    book: CallRecord | None,
    engine: str,
    as_json: bool,
    console: Console,
) -> None:
    import asyncio

    from offbeat.serve.server import serve as run

    def say(url: str, hub: Hub) -> None:
        if as_json:
            typer.echo(json.dumps({"url": url, "model": name, "version": hub.pins.newest}))
        console.print(f"{name} at {url}, newest version {hub.pins.newest}; Ctrl-C ends it", highlight=False)

    asyncio.run(run(source, options, sock, key, name, book, say, engine))


def _require_extra() -> None:
    """Raises SettingsError where the libraries of the extra are not installed. Loads none of them."""
    from importlib.util import find_spec

    for library in ("prometheus_client", "starlette", "uvicorn"):
        if find_spec(library) is None:
            raise SettingsError(f"serve: {library} is not installed; run pip install 'offbeat[serve]'")
