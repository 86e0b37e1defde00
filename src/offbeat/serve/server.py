"""A server from a directory: engine, hub, endpoint, socket. The only file of this room that knows all of it.

Safe by default: loopback alone unless there is a key, and an address that is taken is one line.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from offbeat.errors import SettingsError
from offbeat.ports import Generator
from offbeat.rollout.config import read_shape
from offbeat.rollout.engine import Engine
from offbeat.serve.app import Endpoint
from offbeat.serve.calls import Notice
from offbeat.serve.desk import Desk
from offbeat.serve.gate import Gate
from offbeat.serve.hub import Hub, opened
from offbeat.serve.observed import CallRecord, Metrics
from offbeat.serve.options import ServeOptions
from offbeat.serve.sources import Source

DEFAULT_CONTEXT = 2048
GRACE_SECONDS = 5
"""What calls under way get to end when the server is asked to stop."""


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    key: str

    def check(self) -> None:
        """Raises SettingsError for an address that others can reach while nobody needs a key."""
        if not self.key and not _is_loopback(self.host):
            raise SettingsError(
                f"--host {self.host}: can be reached from other machines, which needs a key; give one with --key-file"
                " or OFFBEAT_API_KEY"
            )

    def bind(self) -> socket.socket:
        """Raises SettingsError for an address that cannot be had."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((self.host, self.port))
        except (OSError, OverflowError) as error:
            sock.close()
            raise SettingsError(
                f"--host {self.host} --port {self.port}: cannot be listened at"
                f" ({getattr(error, 'strerror', None) or error}); choose another port (0: any that is free)"
            ) from None
        sock.listen(2048)
        return sock


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def default_options(source: Source, engine: str = "local", **given: int | float | None) -> ServeOptions:
    """Options with the source's context where none is given. Raises SettingsError where they do not fit its model."""
    positions = read_shape(source.policy).max_positions
    chosen = {name: value for name, value in given.items() if value is not None}
    context = int(chosen.setdefault("context", source.context or min(positions, DEFAULT_CONTEXT)))
    chosen.setdefault("max_new_tokens", context)
    if engine == "vllm":
        if chosen.get("lanes", 1) > 1:
            raise SettingsError(f"--lanes {chosen['lanes']}: a process has one vLLM engine; leave it out")
        if not source.lora_rank and chosen.setdefault("max_versions", 1) > 1:
            raise SettingsError(
                f"--max-versions {chosen['max_versions']}: vLLM holds one version that is all weights, several that are"
                " adapters; leave it out, or use --engine local"
            )
    if "keep_versions" not in chosen:
        chosen["keep_versions"] = min(2, int(chosen.get("max_versions", 2)))
    if context > positions:
        raise SettingsError(f"--context {context}: the model takes {positions} tokens; give at most those")
    if chosen["keep_versions"] > chosen.get("max_versions", ServeOptions.model_fields["max_versions"].default):
        raise SettingsError(f"--keep-versions {chosen['keep_versions']}: more than --max-versions; lower it")
    return ServeOptions.model_validate(chosen)


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
    address: Address,
    name: str,
    record: CallRecord | None,
    say: Callable[[str, Hub], None],
    engine: str = "local",
) -> None:
    """Serve until SIGINT or SIGTERM. `say` is told the endpoint's URL once it answers."""
    address.check()
    with address.bind() as sock:
        host, port = sock.getsockname()[:2]
        made = partial(engine_of, source, options, engine)
        async with endpoint(source, options, address.key, name, record, made) as (app, hub):
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


def read_key(file: Path) -> str:
    """Raises SettingsError for a file that holds no usable key."""
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise SettingsError(f"--key-file {file}: cannot be read ({reason}); give a file that holds one key") from None
    return check_key(key, f"--key-file {file}")


def check_key(key: str, where: str) -> str:
    """Raises SettingsError for a key that cannot travel in a header."""
    if not key.isascii() or not key.isprintable() or " " in key or len(key) < 8:
        raise SettingsError(f"{where}: not a usable key; use 8 printable ASCII characters or more, without spaces")
    return key
