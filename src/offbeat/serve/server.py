"""A server from a source: engine, hub, endpoint, socket. The only file of this room that knows all of it.

Loads the large libraries: what can be refused without them is checked before this file is imported.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import uvicorn
from starlette.applications import Starlette

from offbeat.ports import Generator
from offbeat.rollout.engine import Engine
from offbeat.serve.app import Endpoint
from offbeat.serve.calls import Notice
from offbeat.serve.desk import Desk
from offbeat.serve.gate import Gate
from offbeat.serve.hub import Hub, opened
from offbeat.serve.observed import Metrics
from offbeat.serve.options import ServeOptions
from offbeat.serve.record import CallRecord
from offbeat.serve.sources import Source

GRACE_SECONDS = 5
"""What calls under way get to end when the server is asked to stop."""


def engine_of(source: Source, options: ServeOptions, engine: str = "local") -> Generator:
    """An engine of this process. Raises EngineError for a model that it does not take."""
    if engine == "vllm":
        from offbeat.backends.vllm.engine import VllmEngine

        lora = (options.max_versions, source.lora_rank) if source.lora_rank else (0, 0)
        return VllmEngine(source.policy, options.slots, options.context, lora=lora)
    return Engine(source.policy, slots=options.slots, context=options.context)


@asynccontextmanager
async def endpoint(
    source: Source,
    options: ServeOptions,
    key: str = "",
    name: str = "",
    record: CallRecord | None = None,
    make: Callable[[], Generator] | None = None,
) -> AsyncIterator[tuple[Starlette, Hub]]:
    """The application and its hub, with its first version. Raises EngineError where none can be had."""
    metrics = Metrics()

    def saw(notice: Notice) -> None:
        metrics.saw(notice)
        if record is not None:
            record.saw(notice)

    hub = Hub(source, options, make or (lambda: engine_of(source, options)), saw)
    metrics.watch(hub)
    desk = Desk(hub, name or source.name)
    gate = Gate(key, options.max_body_bytes, options.body_seconds)
    async with opened(hub):
        yield Endpoint(desk, gate, metrics.page, metrics.answered).app(), hub


async def serve(
    source: Source,
    options: ServeOptions,
    sock: socket.socket,
    key: str,
    name: str,
    record: CallRecord | None,
    say: Callable[[str, Hub], None],
    engine: str = "local",
) -> None:
    """Serve at a socket that listens, until SIGINT or SIGTERM. `say` is told the endpoint's URL once it answers."""
    host, port = sock.getsockname()[:2]
    made = partial(engine_of, source, options, engine)
    async with endpoint(source, options, key, name, record, made) as (app, hub):
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=GRACE_SECONDS,
            server_header=False,
        )
        server = _Server(config)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, server.handle_exit, number, None)
        say(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1", hub)
        await server.serve(sockets=[sock])


class _Server(uvicorn.Server):
    """Signals are handled by whoever starts it: to be stopped is how a server ends, not an accident."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
