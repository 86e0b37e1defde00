"""Waiting for several things at once and leaving none of them behind. Knows asyncio and ASGI's `receive` only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, which is cancelled, giving None, when the client leaves first."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        await _cancelled(working, watching)


async def all_of(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Every result, in this order. The first error is raised once all others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await _cancelled(*tasks)


@asynccontextmanager
async def merged(sources: Sequence[AsyncGenerator[T]]) -> AsyncIterator[AsyncIterator[T]]:
    """What several generators give, in order of arrival; an error of one is raised in its turn. All are closed."""
    arrived: asyncio.Queue[tuple[T | None, BaseException | None, bool]] = asyncio.Queue()

    async def pump(source: AsyncGenerator[T]) -> None:
        failure: BaseException | None = None
        try:
            async with aclosing(source):
                async for item in source:
                    arrived.put_nowait((item, None, False))
        except Exception as error:  # raised again where the items are taken
            failure = error
        arrived.put_nowait((None, failure, True))

    async def items() -> AsyncIterator[T]:
        going = len(sources)
        while going:
            item, failure, over = await arrived.get()
            if failure is not None:
                raise failure
            if over:
                going -= 1
            else:
                yield item  # type: ignore[misc]

    tasks = [asyncio.ensure_future(pump(source)) for source in sources]
    try:
        yield items()
    finally:
        await _cancelled(*tasks)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
