"""What cannot be answered is refused with the right status and one line, and begins nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from offbeat.errors import SettingsError
from offbeat.ports import Completion
from offbeat.serve.address import Address, check_key
from offbeat.serve.gate import Gate
from offbeat.serve.refusals import HttpRefusal

from .conftest import Paced, Served, Shelf, policy, served

GOOD: dict[str, Any] = {"model": "tiny", "prompt": "1+1=", "max_tokens": 4}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "1+1="}], "max_tokens": 4}


async def post(server: Served, body: Any, path: str = "completions", **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with httpx.AsyncClient() as client:
        return await client.post(
            f"{server.url}/{path}", content=content, headers={"content-type": "application/json"} | headers
        )


def run(scenario: Callable[[Served], Awaitable[None]], **changes: Any) -> None:
    async def main() -> None:
        async with served(**changes) as server:
            await scenario(server)
            await server.rest()

    asyncio.run(main())


def test_neutral_values_of_unsupported_keys_are_taken() -> None:
    async def scenario(server: Served) -> None:
        body = GOOD | {"frequency_penalty": 0, "echo": False, "user": "me", "logit_bias": None, "best_of": 1}
        assert (await post(server, body)).status_code == 200

    run(scenario)


def test_large_bodies_are_413_declared_or_not() -> None:
    async def scenario(server: Served) -> None:
        large = GOOD | {"prompt": "1" * 4000}
        assert (await post(server, large)).status_code == 413

        async def chunks() -> Any:
            for _ in range(4000):
                yield b" " * 1000

        async with httpx.AsyncClient() as client:
            undeclared = client.post(
                f"{server.url}/completions", content=chunks(), headers={"content-type": "application/json"}
            )
            with contextlib.suppress(httpx.WriteError):  # the server closes the connection on what is still being sent
                assert (await undeclared).status_code == 413
        assert (await post(server, GOOD)).status_code == 200

    run(scenario, max_body_bytes=2000)


def test_a_body_that_does_not_come_is_408() -> None:
    async def scenario(server: Served) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert b" 408 " in await reader.readline()
        writer.close()

    run(scenario, body_seconds=0.05)


def test_keys() -> None:
    async def scenario(server: Served) -> None:
        for authorization in (
            "",
            "Bearer",
            "Bearer wrong-key",
            "Basic secret-key",
            "Bearer secret-key2",
            "Bearer secre",
        ):
            answer = await post(server, GOOD, authorization=authorization)
            assert answer.status_code == 401, authorization
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert "secret-key" not in answer.text
        for path in ("metrics", "v1/models", "v1/sessions/s"):
            async with httpx.AsyncClient() as client:
                assert (await client.get(f"http://127.0.0.1:{server.port}/{path}")).status_code == 401, path
        assert (await post(server, GOOD, authorization="Bearer secret-key")).status_code == 200
        assert (await post(server, GOOD, authorization="bearer secret-key", host="example.com")).status_code == 200

    run(scenario, key="secret-key")


def test_without_a_key_only_this_machine_is_answered() -> None:
    """A web page elsewhere that has itself resolved to this machine is refused, and so is a form."""

    async def scenario(server: Served) -> None:
        assert (await post(server, GOOD, host="evil.example")).status_code == 403
        assert (await post(server, GOOD, host="localhost:1")).status_code == 200
        form = {"content-type": "text/plain"}
        assert (await post(server, GOOD, **form)).status_code == 415

    run(scenario)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.com"])
def test_others_can_reach_a_server_only_with_a_key(host: str) -> None:
    with pytest.raises(SettingsError, match="needs a key"):
        Address(host, 0, "").check()
    Address(host, 0, "long-enough").check()


@pytest.mark.parametrize("key", ["", "short", "with a space", "tab\tbed-key", "ключ-ключ"])
def test_unusable_keys_are_refused(key: str) -> None:
    with pytest.raises(SettingsError, match="not a usable key"):
        check_key(key, "--key-file k")


def test_an_address_that_is_taken_is_one_line() -> None:
    with Address("127.0.0.1", 0, "").bind() as sock, pytest.raises(SettingsError, match="cannot be listened at"):
        Address("127.0.0.1", sock.getsockname()[1], "").bind()


def test_unknown_models_versions_and_paths_are_404() -> None:
    async def scenario(server: Served) -> None:
        for model in ("gpt-4", "tiny@9", "tiny@", "tiny@-1", "tiny@x", "@0", "tiny@0@0"):
            answer = await post(server, GOOD | {"model": model})
            assert answer.status_code == 404, model
            assert answer.json()["error"]["code"] == "model_not_found"
        async with httpx.AsyncClient() as client:
            for path in ("v1/models/tiny@7", "v1/nothing", "v1/sessions/s"):
                answer = await client.get(f"http://127.0.0.1:{server.port}/{path}")
                assert answer.status_code == 404, path
                assert answer.json()["error"]["message"]
            assert (await client.get(f"{server.url}/completions")).status_code == 405

    run(scenario)


def test_a_version_that_is_damaged_is_404_and_the_others_are_served() -> None:
    async def scenario(server: Served) -> None:
        server.hub.source.broken.add(1)  # type: ignore[attr-defined]
        server.hub.source.there[1] = ""  # type: ignore[attr-defined]
        await server.until(lambda: server.versions("refused") == [1])
        answer = await post(server, GOOD | {"model": "tiny@1"})
        assert answer.status_code == 404
        assert (await post(server, GOOD)).json()["model"] == "tiny@0"

    run(scenario, source=Shelf(0))


def test_sessions_that_no_session_can_be() -> None:
    async def scenario(server: Served) -> None:
        for session in ("a b", "x" * 129, "a/b", "a;b"):
            answer = await post(server, GOOD, **{"x-offbeat-session": session})
            assert answer.status_code == 400, session
        both = {"x-offbeat-session": "one", "authorization": "Bearer none:two"}
        assert (await post(server, GOOD, **both)).status_code == 400

    run(scenario)


@pytest.mark.parametrize(
    ("header", "values", "words"),
    [
        ("X-Offbeat-Session", ("one", "two"), "x-offbeat-session is sent with 'one' and 'two'"),
        ("Authorization", ("Bearer none:one", "Bearer none:two"), "authorization is sent with 2 values"),
        ("Content-Type", ("application/json", "text/plain"), "content-type is sent with"),
    ],
)
def test_a_header_that_says_two_things_is_refused(header: str, values: tuple[str, str], words: str) -> None:
    """Nobody is answered by the session, the key, the host or the type that came first."""

    def sent(server: Served, values: tuple[str, ...]) -> Awaitable[httpx.Response]:
        listed = [(header, value) for value in values]
        if header != "Content-Type":
            listed.append(("Content-Type", "application/json"))
        return httpx.AsyncClient().post(f"{server.url}/completions", content=json.dumps(GOOD), headers=listed)

    async def scenario(server: Served) -> None:
        refused = await sent(server, values)
        assert refused.status_code == 400
        assert words in refused.json()["error"]["message"]
        assert not server.ended
        assert (await sent(server, (values[0], values[0]))).status_code == 200

    run(scenario)


def test_a_request_for_two_hosts_is_refused() -> None:
    headers = [(b"host", b"localhost"), (b"host", b"evil.example")]
    with pytest.raises(HttpRefusal, match=r"^host is sent with 'localhost' and 'evil.example'"):
        Gate("", 1, 1.0).session_of(Request({"type": "http", "headers": headers}))


def test_more_calls_than_may_be_are_429() -> None:
    let_go = threading.Event()

    class Held(Paced):
        def step(self) -> list[Completion]:
            if let_go.is_set():
                return super().step()
            time.sleep(self.seconds)
            return []

    async def scenario(server: Served) -> None:
        two = GOOD | {"n": 2}
        first = asyncio.create_task(post(server, two))
        await server.until(lambda: len(server.hub.calls) == 2)
        refused = await post(server, two)
        let_go.set()
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["x-should-retry"] == "true"
        assert (await first).status_code == 200
        assert (await post(server, GOOD)).status_code == 200

    run(scenario, max_calls=2, engine=Held)


def test_the_tiny_model_is_what_the_tests_think() -> None:
    assert (policy() / "tokenizer.json").exists()
