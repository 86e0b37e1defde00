"""Tools in a chat: OpenAI's own client calls them, streamed or not; the next turn goes on from the very tokens."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any, cast

import httpx
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI, BadRequestError

from offbeat.agents.episodes import EpisodeHub, session_of
from offbeat.backends.agent_messages import AskTurn, RunEpisode, TurnIs
from offbeat.models.tokens import encode_rendered, load_tokenizer, rendered
from offbeat.records import Prompt, Span
from offbeat.serve.app import Endpoint
from offbeat.serve.desk import Desk
from offbeat.serve.gate import Gate
from offbeat.serve.hub import Hub
from offbeat.serve.tools import ToolStream, find_calls
from offbeat.settings import RolloutSettings
from tests.scratch import scratch

from .conftest import policy

TEMPLATE = (
    "{% if tools %}T{% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}={{ m.content }};{% else %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}#{{ c.function.name }}{{ c.function.arguments['a'] }}{% endfor %}{% endif %}"
    "{% endfor %}"
)
ADD = {
    "type": "function",
    "function": {"name": "add", "description": "a + b", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>{"name":"add",  "arguments": {"a": 1, "b": 2}}</tool_call>'
USER: list[Any] = [{"role": "user", "content": "1+2?"}]


@cache
def telling() -> Path:
    """The tiny policy with a chat template that tells of tools."""
    directory = scratch("tools")
    copytree(policy(), directory, dirs_exist_ok=True)
    config = directory / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": TEMPLATE}))
    return directory


class Scripted:
    """An endpoint of one episode whose policy says what the script says."""

    key = "a-long-key"

    def __init__(
        self, *script: str, directory: Path | None = None, tools: Any = (ADD,), prompt: Prompt | None = None
    ) -> None:
        self.directory = directory or telling()
        self.tokenizer = load_tokenizer(self.directory)
        ids = encode_rendered(self.tokenizer, rendered(self.tokenizer, USER, tools))
        self.asked = RunEpisode(7, 1, 3, prompt or Prompt(0, "t", "1+2?", "", tuple(ids)))
        self.script = list(script)
        self.heard: list[AskTurn] = []
        hub = EpisodeHub(self.directory, RolloutSettings(context=512, max_new_tokens=400), self.hear)
        self.hub, self.desk = hub, Desk(cast(Hub, hub), "policy")
        self.episode = hub.begin(self.asked)
        gate = Gate(self.key, 1 << 20, 5.0)
        self.app = Endpoint(self.desk, gate, lambda: (b"", ""), lambda path, status: None).app()
        self.client = AsyncOpenAI(
            base_url="http://127.0.0.1/v1",
            api_key=f"{self.key}:{session_of(self.asked)}",
            max_retries=0,
            http_client=httpx.AsyncClient(transport=httpx.ASGITransport(self.app)),
        )

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """The endpoint behind a real socket: its URL."""
        server = uvicorn.Server(uvicorn.Config(self.app, port=0, log_level="warning", lifespan="off"))
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.001)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            await task

    def hear(self, turn: AskTurn) -> None:
        self.heard.append(turn)
        tokens = (*self.tokenizer.encode(self.script.pop(0), add_special_tokens=False), self.tokenizer.eos_token_id)
        span = Span(3, cast(Any, tokens), (-0.5,) * len(tokens))
        answer = TurnIs(turn.trajectory_id, turn.attempt, turn.turn, span, "stop")
        asyncio.get_running_loop().call_soon(self.hub.answered, answer)

    async def chat(self, messages: list[Any] = USER, **more: Any) -> Any:
        return await self.client.chat.completions.create(
            **{"model": "policy", "messages": messages, "tools": [ADD]} | more
        )


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


def test_a_call_is_named_and_the_next_turn_goes_on_from_the_very_tokens() -> None:
    async def scenario() -> None:
        served = Scripted(f"so:\n{CALL}", "3")
        choice = (await served.chat()).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "so:")
        (call,) = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1, "b": 2})
        shown = {"role": "tool", "tool_call_id": call.id, "content": "3"}
        last = await served.chat([*USER, choice.message.model_dump(), shown])
        assert (last.choices[0].message.content, last.choices[0].message.tool_calls) == ("3", None)
        whole = served.tokenizer.decode(
            list(served.heard[1].context_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert f"so:\n{CALL}" in whole, "the model reads what it wrote, spaces and all"
        assert served.heard[1].context_ids[: len(served.heard[0].context_ids)] == served.heard[0].context_ids
        assert sum(served.episode.mask) == len(served.tokenizer.encode(f"so:\n{CALL}3", add_special_tokens=False)) + 2

    run(scenario)


def test_a_call_that_was_changed_is_another_conversation() -> None:
    async def scenario() -> None:
        served = Scripted(CALL)
        message = (await served.chat()).choices[0].message.model_dump()
        message["tool_calls"][0]["function"]["arguments"] = '{"a": 2}'
        with pytest.raises(BadRequestError, match="only grows"):
            await served.chat([*USER, message])

    run(scenario)


def test_a_stream_gives_text_then_calls() -> None:
    async def scenario() -> None:
        served = Scripted(f"so: {CALL} {CALL}")
        text, calls, reasons = "", [], []
        async for chunk in await served.chat(stream=True):
            delta = chunk.choices[0].delta
            text += delta.content or ""
            calls += delta.tool_calls or []
            reasons.append(chunk.choices[0].finish_reason)
        assert text == "so:"
        assert [(call.index, call.function.name) for call in calls] == [(0, "add"), (1, "add")]
        assert len({call.id for call in calls}) == 2
        assert reasons[-1] == "tool_calls"

    run(scenario)


MALFORMED = (
    '<tool_call>{"name": "add", "arguments": {"a": </tool_call>',
    '<tool_call>{"name": "subtract", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {}}',
    '{"name": "add", "parameters": {}} and more',
    '{"a": 1}',
    '{"name": "add", "parameters": {"a": NaN}}',
    '{"name": "add", "parameters": {"a": -1e999}}',
    "<tool_call>" + "[" * 50 + "</tool_call>",
    " <tool",
)


@pytest.mark.parametrize("said", MALFORMED)
def test_what_is_no_call_stays_text(said: str) -> None:
    async def scenario() -> None:
        choice = (await Scripted(said).chat()).choices[0]
        assert (choice.message.content, choice.message.tool_calls) == (said, None)
        assert choice.finish_reason == "stop"

    run(scenario)


def test_llama_spells_a_call_as_bare_json() -> None:
    for said in (
        '{"name": "add", "parameters": {"a": 1}}',
        ' <|python_tag|>{"name": "add", "arguments": "{\\"a\\": 1}"}',
    ):
        content, (call,) = find_calls(said, {"add"})
        assert (content, call.name, call.arguments) == ("", "add", '{"a": 1}')


def test_without_choice_the_model_is_not_told_and_nothing_is_a_call() -> None:
    async def scenario() -> None:
        choice = (await Scripted(CALL, tools=()).chat(tool_choice="none")).choices[0]
        assert (choice.message.content, choice.message.tool_calls) == (CALL, None)

    run(scenario)


REFUSED: dict[str, dict[str, Any]] = {
    "a choice nothing can force": {"tool_choice": "required"},
    "one tool at a time": {"parallel_tool_calls": False},
    "two of one name": {"tools": [ADD, ADD]},
    "a tool that is no function": {"tools": [{"type": "custom", "custom": {"name": "add"}}]},
    "a name that is none": {"tools": [{"type": "function", "function": {"name": "a b"}}]},
    "too many": {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)]},
    "calls of a user": {"messages": [{"role": "user", "content": "x", "tool_calls": [{"id": "1", **ADD}]}]},
    "nothing said": {"messages": [{"role": "assistant", "content": None}]},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_kept_is_refused(case: str) -> None:
    async def scenario() -> None:
        served = Scripted()
        with pytest.raises(BadRequestError, match=r"tool|messages"):
            await served.chat(**REFUSED[case])
        assert not served.heard

    run(scenario)


def test_a_model_without_template_cannot_be_told_of_tools() -> None:
    async def scenario() -> None:
        with pytest.raises(BadRequestError, match="no chat template"):
            await Scripted(directory=policy()).chat()

    run(scenario)


PIECES = st.lists(st.sampled_from([CALL, *MALFORMED, " ", "\n", "text", "<", "{", "<|python_tag|>"]), max_size=5)


@given(PIECES, st.lists(st.integers(1, 9), min_size=1))
@settings(max_examples=50, deadline=None)
def test_a_stream_joins_to_the_whole_text(pieces: list[str], cuts: list[int]) -> None:
    text, stream, at, given_out, turn = "".join(pieces), ToolStream({"add"}), 0, "", 0
    content, calls = find_calls(text, {"add"})
    while at < len(text):
        size = cuts[turn % len(cuts)]
        given_out += stream.add(text[at : at + size])
        at, turn = at + size, turn + 1
        assert content.startswith(given_out)
    rest, streamed = stream.finish()
    assert given_out + rest == content
    assert [call[1:] for call in streamed] == [call[1:] for call in calls]
