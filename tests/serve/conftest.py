"""A server in the test's own event loop, over tiny models whose versions are published when the test says so."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from openai import AsyncOpenAI

from offbeat.models.presets import Preset, build_model, write_policy
from offbeat.ports import Completion, Generator
from offbeat.rollout.engine import Engine
from offbeat.serve.calls import CallEnded, Notice, VersionChanged
from offbeat.serve.hub import Hub
from offbeat.serve.options import ServeOptions
from offbeat.serve.server import endpoint
from tests.scratch import scratch

TINY = Preset(width=8, hidden=8, layers=1, heads=1, kv_heads=1)
CONTEXT = 96


_POLICIES: dict[int, Path] = {}
_ONE_AT_A_TIME = threading.Lock()


def policy(seed: int = 0) -> Path:
    """A Hugging Face directory with random weights and the character tokenizer, which has no chat template.

    Lanes ask from their own threads, and a seed is the process's: two at once would not get the same weights.
    """
    with _ONE_AT_A_TIME:
        if seed not in _POLICIES:
            directory = scratch("serve")
            write_policy(build_model(TINY, seed), directory)
            _POLICIES[seed] = directory
        return _POLICIES[seed]


class Shelf:
    """A source whose versions are published by hand: version v has the weights of seed v."""

    name = "tiny"
    policy = policy()
    context: int | None = CONTEXT
    lora_rank = 0

    def __init__(self, *versions: int) -> None:
        self.there = dict.fromkeys(versions, "")
        self.broken: set[int] = set()

    def poll(self) -> Mapping[int, str]:
        return dict(self.there)

    def take_up(self, version: int, generator: Generator) -> None:
        from offbeat.errors import WeightsError

        if version in self.broken:
            raise WeightsError(f"version {version} is damaged")
        generator.load(version, policy(version) / "model.safetensors")


class Paced(Engine):
    """A step takes a moment, so that a test can come between."""

    seconds = 0.004

    def step(self) -> list[Completion]:
        time.sleep(self.seconds)
        return super().step()


class Served:
    """What a test has of a server: clients, the hub, and every notice it gave."""

    def __init__(self, hub: Hub, port: int, notices: list[Notice], key: str) -> None:
        self.hub, self.port, self.notices, self.key = hub, port, notices, key
        self.url = f"http://127.0.0.1:{port}/v1"

    def client(self, session: str | None = None, key: str | None = None, **more: Any) -> AsyncOpenAI:
        headers = {} if session is None else {"X-Offbeat-Session": session}
        options = {"max_retries": 0} | more
        return AsyncOpenAI(base_url=self.url, api_key=key or self.key or "none", default_headers=headers, **options)

    @property
    def ended(self) -> list[CallEnded]:
        return [notice for notice in self.notices if isinstance(notice, CallEnded)]

    def versions(self, what: str) -> list[int]:
        return [n.version for n in self.notices if isinstance(n, VersionChanged) and n.what == what]

    async def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            await asyncio.sleep(0.005)

    async def rest(self) -> None:
        """Nothing is under way: no call, no slot."""
        await self.until(lambda: not self.hub.calls)
        await self.until(lambda: not any(lane._told for lane in self.hub._lanes.values()))


@contextlib.asynccontextmanager
async def served(
    source: Any = None,
    key: str = "",
    engine: Callable[..., Generator] = Engine,
    name: str = "",
    **changes: Any,
) -> AsyncIterator[Served]:
    source = source or Shelf(0)
    given = {"context": CONTEXT, "max_new_tokens": CONTEXT, "slots": 4, "poll_seconds": 0.01, "keep_versions": 1}
    options = ServeOptions(**given | changes)
    notices: list[Notice] = []

    class Book:
        saw = staticmethod(notices.append)

    def make() -> Generator:
        return engine(source.policy, slots=options.slots, context=options.context)

    async with endpoint(source, options, key, name, Book, make) as (app, hub):  # type: ignore[arg-type]
        config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.001)
        try:
            yield Served(hub, server.servers[0].sockets[0].getsockname()[1], notices, key)
        finally:
            server.should_exit = True
            await task


@pytest.fixture(autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)
