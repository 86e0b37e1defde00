"""Clients that leave, engines that break: calls end, slots are freed, nothing is left behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from openai import APIError, InternalServerError

from offbeat.ports import Completion
from offbeat.rollout.engine import NonFiniteLogits

from .conftest import Paced, Shelf, served

LONG: dict[str, Any] = {"model": "tiny", "prompt": "1+1=", "max_tokens": 90, "seed": 3}


class Endless(Paced):
    """Nothing ends before its limit."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._eos[:] = False


def test_a_client_that_leaves_its_stream_frees_its_slot() -> None:
    async def scenario() -> None:
        async with served(engine=Endless) as server:
            stream = await server.client(session="s").completions.create(**LONG, n=3, stream=True)
            await anext(aiter(stream))
            assert len(server.hub.calls) == 3
            await stream.close()
            await server.rest()
            assert [ended.outcome for ended in server.ended] == ["aborted"] * 3
            assert all(ended.tokens < 90 for ended in server.ended)
            assert server.hub.pins.sessions["s"].calls == 0

    asyncio.run(scenario())


def test_a_client_that_leaves_before_the_answer_frees_its_slot() -> None:
    async def scenario() -> None:
        async with served(engine=Endless) as server:
            asking = asyncio.create_task(server.client().completions.create(**LONG))
            await server.until(lambda: any(call.tokens for call in server.hub.calls.values()))
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await server.rest()
            assert [ended.outcome for ended in server.ended] == ["aborted"]

    asyncio.run(scenario())


def test_clients_that_leave_while_they_wait_for_a_slot_are_forgotten() -> None:
    class Crawls(Endless):
        seconds = 0.1

    async def scenario() -> None:
        async with served(engine=Crawls, slots=1) as server:
            first = asyncio.create_task(server.client().completions.create(**LONG))
            await server.until(lambda: len(server.hub.calls) == 1)
            leaving = [asyncio.create_task(server.client().completions.create(**LONG)) for _ in range(5)]
            await server.until(lambda: len(server.hub.calls) == 6)
            Crawls.seconds = 0.0
            for one in leaving:
                one.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
            await server.until(lambda: len(server.hub.calls) == 1)
            assert len((await first).choices[0].text) > 0
            await server.rest()
            assert sorted(ended.outcome for ended in server.ended) == ["aborted"] * 5 + ["length"]

    asyncio.run(scenario())


def test_connections_that_break_at_any_byte_leave_nothing() -> None:
    """The request is cut after ever more bytes, the answer read for ever longer, then the socket is closed."""

    async def scenario() -> None:
        async with served(engine=Endless) as server:
            body = json.dumps(LONG | {"stream": True, "max_tokens": 40}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            request = head.encode() + b"Content-Type: application/json\r\n\r\n" + body
            for cut in range(0, len(request) + 1, 23):
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(request[:cut])
                await writer.drain()
                writer.close()
            for read in (1, 100, 700, 2000):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(request)
                await reader.readexactly(read)
                writer.transport.abort()
            await server.rest()
            done = await server.client().completions.create(**LONG | {"max_tokens": 4})
            assert done.usage.completion_tokens == 4

    asyncio.run(scenario())


class Breaks(Paced):
    """The first engines of a test that get so far break; those after them do not."""

    broken: list[Breaks] = []
    breaks_after = 20
    to_break = 1

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._eos[:] = False
        self.steps = 0

    def step(self) -> list[Completion]:
        done = super().step()
        self.steps += bool(self.decoded())
        if self.steps > self.breaks_after and len(Breaks.broken) < self.to_break:
            Breaks.broken.append(self)
            raise MemoryError("no memory for keys and values")
        return done


@pytest.mark.parametrize("lanes", [1, 2])
def test_calls_of_an_engine_that_breaks_go_on_with_the_same_tokens(lanes: int) -> None:
    """A call that changes lanes keeps version and tokens; its client notices nothing."""

    async def scenario() -> None:
        Breaks.broken.clear()
        async with served(Shelf(0, 1), engine=Breaks, lanes=lanes) as server:
            ask = LONG | {"max_tokens": 60}
            stream = await server.client(session="s").completions.create(**ask, stream=True)
            text = ""
            async for chunk in stream:
                if not text:
                    server.hub.source.there[2] = ""  # type: ignore[attr-defined]
                text += chunk.choices[0].text
            await server.rest()
            moved = server.ended[0]
            assert len(moved.lanes) == 2
            assert moved.versions == (1,)
            assert moved.tokens == 60
            assert any(getattr(notice, "moved", 0) == 1 for notice in server.notices)
            await server.until(lambda: server.hub.pins.newest == 2)
            again = await server.client(session="s").completions.create(**ask)
            assert again.choices[0].text == text
            assert again.model == "tiny@1"

    asyncio.run(scenario())


def test_engines_that_break_again_and_again_are_given_up() -> None:
    class Never(Breaks):
        to_break = 10

    async def scenario() -> None:
        Breaks.broken.clear()
        async with served(engine=Never) as server:
            with pytest.raises(InternalServerError, match="no memory for keys and values"):
                await server.client().completions.create(**LONG)
            health = await server.client()._client.get(f"http://127.0.0.1:{server.port}/health")
            assert health.status_code == 503
            with pytest.raises(InternalServerError):
                await server.client().completions.create(**LONG)

    asyncio.run(scenario())


class Drops(Paced):
    """Its third step meets logits that are not finite, in the request that came first."""

    steps = 0

    def step(self) -> list[Completion]:
        self.steps += bool(self.decoded())
        if self.steps == 3:
            first = min(self.decoded())
            self.abort([first])
            raise NonFiniteLogits((first,), (0,))
        return super().step()


def test_a_call_that_fails_says_so_and_the_others_go_on() -> None:
    async def scenario() -> None:
        async with served(engine=Drops) as server:
            client = server.client()
            failing = await client.completions.create(**LONG, stream=True)
            other = asyncio.create_task(client.completions.create(**LONG))
            with pytest.raises(APIError, match="not finite"):
                async for _ in failing:
                    pass
            assert (await other).choices[0].finish_reason
            await server.rest()
            assert sorted(ended.outcome for ended in server.ended)[0] == "failed"

    asyncio.run(scenario())


class Slow(Endless):
    seconds = 0.1


def test_stopping_the_server_ends_its_calls() -> None:
    async def scenario() -> None:
        async with served(engine=Slow) as server:
            asking = asyncio.create_task(server.client().completions.create(**LONG))
            await server.until(lambda: len(server.hub.calls) == 1)
        with pytest.raises((APIError, httpx.HTTPError)):
            await asking
        assert not server.hub.calls

    asyncio.run(scenario())


def test_an_engine_begun_anew_need_not_have_what_is_let_go() -> None:
    """Its version's file is gone, its session is over: letting the version go costs nothing."""

    async def scenario() -> None:
        Breaks.broken.clear()
        async with served(Shelf(0), engine=Breaks) as server:
            source = server.hub.source
            await server.client(session="s").completions.create(**LONG | {"max_tokens": 4})
            source.there[1] = ""  # type: ignore[attr-defined]
            await server.until(lambda: server.hub.pins.held == {0, 1})
            source.broken.add(0)  # type: ignore[attr-defined]
            done = await server.client().completions.create(**LONG | {"max_tokens": 40})
            assert done.model == "tiny@1"
            assert server.ended[-1].lanes == (0, 0)
            with pytest.raises(InternalServerError, match="no engine holds version 0"):
                await server.client(session="s").completions.create(**LONG | {"max_tokens": 4})
            server.hub.pins.close("s")
            await server.until(lambda: server.hub.pins.held == {1})
            again = await server.client().completions.create(**LONG | {"max_tokens": 4})
            assert again.model == "tiny@1"
            assert len(Breaks.broken) == 1

    asyncio.run(scenario())
