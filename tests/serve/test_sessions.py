"""A session is answered by one version over publishes, lanes and time, and by none at all rather than by another."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI

from .conftest import Paced, Served, served

ASK: dict[str, Any] = {"model": "tiny", "prompt": "1+1=", "max_tokens": 8}


async def publish(server: Served, version: int) -> None:
    server.hub.source.there[version] = ""  # type: ignore[attr-defined]
    await server.until(lambda: server.hub.pins.newest == version, seconds=60)


async def asked(client: AsyncOpenAI, **more: Any) -> str:
    return str((await client.completions.create(**ASK | more)).model)


async def refused(client: AsyncOpenAI, **more: Any) -> tuple[int, str | None]:
    with pytest.raises(APIStatusError) as error:
        await client.completions.create(**ASK | more)
    return error.value.status_code, error.value.code


def test_a_session_named_in_a_header_or_after_the_key_keeps_its_version() -> None:
    async def scenario() -> None:
        async with served(key="secret-key") as server:
            header, suffix = server.client(session="h"), server.client(key="secret-key:k")
            nobody = server.client()
            assert [await asked(c) for c in (header, suffix, nobody)] == ["tiny@0"] * 3
            await publish(server, 1)
            await publish(server, 2)
            assert [await asked(c) for c in (header, suffix, nobody)] == ["tiny@0", "tiny@0", "tiny@2"]
            assert server.hub.pins.held == {0, 2}, "version 1 is held for nobody"
            assert server.versions("gone") == [1]
            assert await refused(header, model="tiny@2") == (409, "session_pinned")
            assert await asked(header, model="tiny@0") == "tiny@0"

    asyncio.run(scenario())


def test_a_session_that_is_closed_lets_its_version_go() -> None:
    async def scenario() -> None:
        async with served() as server:
            client = server.client(session="s")
            await asked(client)
            await publish(server, 1)
            told = (await client._client.get(f"{server.url}/sessions/s")).json()
            assert told == {"id": "s", "object": "session", "version": 0, "calls": 0}
            assert (await client._client.delete(f"{server.url}/sessions/s")).json()["deleted"]
            assert (await client._client.delete(f"{server.url}/sessions/s")).status_code == 404
            await server.until(lambda: server.hub.pins.held == {1})
            assert await refused(client) == (410, "session_over")
            assert await asked(server.client(session="t")) == "tiny@1"

    asyncio.run(scenario())


def test_a_lease_that_ends_lets_its_version_go_but_never_under_a_call() -> None:
    async def scenario() -> None:
        async with served(lease_seconds=0.05, engine=Paced) as server:
            client = server.client(session="s")
            long = asyncio.create_task(asked(client, max_tokens=60, logit_bias={}))
            await server.until(lambda: len(server.hub.calls) == 1)
            await publish(server, 1)
            assert await long == "tiny@0"
            await server.until(lambda: server.hub.pins.held == {1})
            assert await refused(client) == (410, "session_over")
            assert server.hub.pins.expired >= 1

    asyncio.run(scenario())


def test_a_publish_waits_for_room_and_says_so() -> None:
    async def scenario() -> None:
        async with served(max_versions=1) as server:
            client = server.client(session="s")
            await asked(client)
            server.hub.source.there[1] = ""  # type: ignore[attr-defined]
            await server.until(lambda: 1 in server.hub.pins.published)
            health = (await client._client.get(f"http://127.0.0.1:{server.port}/health")).json()
            assert health == {"status": "ok", "newest": 0, "published": 1}
            assert await refused(server.client(), model="tiny@1") == (503, "no_room")
            assert await asked(server.client()) == "tiny@0"
            await client._client.delete(f"{server.url}/sessions/s")
            await server.until(lambda: server.hub.pins.newest == 1)

    asyncio.run(scenario())


def test_more_sessions_than_may_be_are_refused() -> None:
    async def scenario() -> None:
        async with served(max_sessions=2) as server:
            for session in "ab":
                await asked(server.client(session=session))
            assert await refused(server.client(session="c")) == (429, "too_many_sessions")
            assert await asked(server.client(session="a")) == "tiny@0"

    asyncio.run(scenario())


def test_the_next_turn_goes_on_from_the_very_tokens_of_the_last() -> None:
    """Also from those that end a response, of which its text shows nothing."""

    async def scenario() -> None:
        async with served(context=90, max_new_tokens=90) as server:
            client = server.client(session="s")
            ids: list[int] = []
            messages: list[Any] = [{"role": "user", "content": "1+1="}]
            for turn in range(4):
                done = await client.chat.completions.create(
                    model="tiny", messages=messages, max_tokens=9, seed=turn, extra_body={"return_token_ids": True}
                )
                prompt_ids = done.model_extra["prompt_token_ids"][0]
                assert prompt_ids[: len(ids)] == ids
                assert len(prompt_ids) > len(ids)
                ids = prompt_ids + done.choices[0].model_extra["token_ids"]
                messages += [
                    {"role": "assistant", "content": done.choices[0].message.content},
                    {"role": "tool", "content": f"={turn}"},
                ]
            other = [*messages[:1], {"role": "user", "content": "anew"}]
            done = await client.chat.completions.create(
                model="tiny", messages=other, max_tokens=2, extra_body={"return_token_ids": True}
            )
            assert len(done.model_extra["prompt_token_ids"][0]) == 1 + len("1+1=anew")

    asyncio.run(scenario())


@pytest.mark.parametrize("lanes", [1, 2])
def test_many_sessions_over_many_publishes_see_one_version_each_and_none_is_lost(lanes: int) -> None:
    """As `runs/serve_sessions.py` at full size. Judged by what the engines say of every call. Four sessions begin under
    each version and go on while the next ones are published."""

    async def scenario() -> None:
        publishes, turns = 5, 4
        sessions = 4 * (publishes + 1)
        async with served(slots=8, lanes=lanes, max_versions=publishes + 1) as server:
            begun, finished = [0] * (publishes + 1), 0

            async def agent(number: int) -> None:
                nonlocal finished
                version, draws = number % (publishes + 1), random.Random(number)
                async with server.client(session=f"agent-{number}") as client:
                    await server.until(lambda: server.hub.pins.newest == version, seconds=60)
                    for turn in range(turns):
                        await client.completions.create(**ASK | {"max_tokens": draws.randint(1, 12)})
                        begun[version] += turn == 0
                        await asyncio.sleep(draws.random() * 0.1)
                finished += 1

            async def publisher() -> None:
                for version in range(1, publishes + 1):
                    await server.until(lambda version=version: begun[version - 1] >= 4)
                    await publish(server, version)

            await asyncio.gather(publisher(), *(agent(number) for number in range(sessions)))
            await server.rest()
            seen = defaultdict(set)
            for ended in server.ended:
                assert ended.outcome in ("stop", "length")
                seen[ended.session] |= set(ended.versions)
            assert finished == len(seen) == sessions
            assert len(server.ended) == sessions * turns
            assert all(len(versions) == 1 for versions in seen.values())
            assert set.union(*seen.values()) == set(range(publishes + 1))

    asyncio.run(scenario())
