"""What a body cannot say is refused by one short line that names the key as its client would write it."""

from __future__ import annotations

import json
from typing import Any, get_args

import httpx
import pytest

from offbeat.records import LEAST_TEMPERATURE
from offbeat.serve.bodies import NEUTRAL, BadRequest, ChatAsk, CompletionAsk, read_ask

from .conftest import CONTEXT, Served
from .test_refusals import CHAT, GOOD, post, run

KINDS = {CompletionAsk: GOOD, ChatAsk: CHAT}
LONG = 300_000


MALFORMED: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{", "JSON"),
    "not an object": ([1], "body"),
    "not text": (b"\xff\xfe", "JSON"),
    "no model": ({"prompt": "1"}, "model"),
    "no prompt": ({"model": "tiny"}, "prompt"),
    "an empty prompt of token ids": (GOOD | {"prompt": []}, "prompt"),
    "a token id that is negative": (GOOD | {"prompt": [-1]}, "prompt"),
    "a token id outside the vocabulary": (GOOD | {"prompt": [1, 10**6]}, "vocabulary"),
    "an empty list among token ids": (GOOD | {"prompt": [[1], []]}, "prompt"),
    "texts and ids": (GOOD | {"prompt": ["a", [1]]}, "prompt"),
    "a number": (GOOD | {"prompt": 7}, "prompt"),
    "no tokens wanted": (GOOD | {"max_tokens": 0}, "max_tokens"),
    "more tokens than may be": (GOOD | {"max_tokens": CONTEXT + 1}, "max_tokens"),
    "more than the context": (GOOD | {"prompt": "1" * CONTEXT}, "context"),
    "a temperature that is none": (GOOD | {"temperature": "warm"}, "temperature"),
    "a temperature below 0": (GOOD | {"temperature": -1}, "temperature"),
    "a temperature that float32 does not bear": (GOOD | {"temperature": 1e-300}, "0.001"),
    "a temperature just too low": (GOOD | {"temperature": LEAST_TEMPERATURE * 0.999}, "temperature"),
    "a temperature that is infinite": (b'{"model": "tiny", "prompt": "1", "temperature": 1e999}', "temperature"),
    "no JSON number": (b'{"model": "tiny", "prompt": "1", "top_p": NaN}', "JSON"),
    "a number of 5000 digits": (b'{"model": "tiny", "prompt": "1", "n": ' + b"1" * 5000 + b"}", "JSON"),
    "top_p of 0": (GOOD | {"top_p": 0}, "top_p"),
    "an unknown key": (GOOD | {"temprature": 1}, "temprature"),
    "a key that is not supported": (GOOD | {"frequency_penalty": 0.5}, "frequency_penalty"),
    "echo": (GOOD | {"echo": True}, "echo"),
    "too many choices": (GOOD | {"n": 128}, "n"),
    "an empty stop string": (GOOD | {"stop": ""}, "stop"),
    "options of no stream": (GOOD | {"stream_options": {"include_usage": True}}, "stream_options"),
}
MALFORMED_CHATS: dict[str, tuple[Any, str]] = {
    "no messages": (CHAT | {"messages": []}, "messages"),
    "an unknown role": (CHAT | {"messages": [{"role": "wizard", "content": "x"}]}, "role"),
    "an image": (CHAT | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "type"),
    "tools": (CHAT | {"tools": [{"type": "function"}]}, "tools"),
    "a temperature that float32 does not bear": (CHAT | {"temperature": 1e-300}, "0.001"),
    "a schema of no number": (
        json.dumps(CHAT | {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": "?"}}}]})
        .replace('"?"', "1e999")
        .encode(),
        "tools[0].function.parameters holds",
    ),
    "log-probs of other tokens": (CHAT | {"logprobs": True, "top_logprobs": 5}, "top_logprobs"),
}


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_malformed_requests_are_400_and_name_the_key(path: str) -> None:
    async def scenario(server: Served) -> None:
        for what, (body, word) in (MALFORMED if path == "completions" else MALFORMED_CHATS).items():
            answer = await post(server, body, path)
            assert answer.status_code == 400, (what, answer.text)
            error = answer.json()["error"]
            assert error["type"] == "invalid_request_error"
            assert word in error["message"], (what, error)
            assert len(error["message"].splitlines()) == 1
            assert answer.headers["x-should-retry"] == "false"
        assert server.notices[1:] == [], "a refused request began something"

    run(scenario, max_calls=100)


def refusal(kind: type[CompletionAsk] | type[ChatAsk], body: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        read_ask(kind, body if isinstance(body, bytes) else json.dumps(body).encode())
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
def test_a_temperature_is_0_or_one_that_float32_bears(kind: type[Any]) -> None:
    for temperature in (0, -0.0, LEAST_TEMPERATURE, 1, 10):
        assert (
            read_ask(kind, json.dumps(KINDS[kind] | {"temperature": temperature}).encode()).temperature == temperature
        )
    for temperature in (5e-324, 1e-300, 1e-40, LEAST_TEMPERATURE * 0.999):
        refused = refusal(kind, KINDS[kind] | {"temperature": temperature})
        assert str(refused).startswith(f"temperature = {temperature:g}: give 0")
        assert str(refused).endswith("or at least 0.001")
        assert refused.param == "temperature"


def numbers(kind: type[Any]) -> list[str]:
    """Every key that takes a number, and those that are not supported but at one."""
    own = [name for name, field in kind.model_fields.items() if {int, float} & {field.annotation, *parts(field)}]
    neutral = [name for name, value in NEUTRAL.items() if type(value) is int and name not in kind.model_fields]
    return own + neutral


def parts(field: Any) -> set[Any]:
    """The types a field's annotation is made of."""
    found, left = set(), [field.annotation]
    while left:
        found.add(one := left.pop())
        left += get_args(one)
    return {one for one in found if isinstance(one, type)}


@pytest.mark.parametrize("kind", KINDS)
def test_true_and_false_are_no_numbers(kind: type[Any]) -> None:
    names = numbers(kind)
    assert {"temperature", "top_p", "top_k", "seed", "n", "max_tokens", "best_of"} <= set(names)
    for name in names:
        for value in (True, False):
            refused = refusal(kind, KINDS[kind] | {name: [value] if name == "prompt" else value})
            assert refused.param == name
            assert str(value) in str(refused)


@pytest.mark.parametrize("prompt", [[True], [1, False], [[1], [True]], [1.0], ["a", 1], [["a"]], [], [[]], {}, 7, True])
def test_a_prompt_is_texts_or_token_ids(prompt: Any) -> None:
    refused = refusal(CompletionAsk, GOOD | {"prompt": prompt})
    assert str(refused).startswith(f"prompt = {prompt!r}: give a text, token ids")
    assert refused.param == "prompt"


def test_a_key_that_is_missing_is_said_to_be_missing() -> None:
    for kind, key in ((CompletionAsk, "prompt"), (CompletionAsk, "model"), (ChatAsk, "messages"), (ChatAsk, "model")):
        for rest in ({}, {key: None}):
            refused = refusal(kind, {k: v for k, v in KINDS[kind].items() if k != key} | rest)
            assert str(refused).startswith(f"{key} is missing; give ")
            assert refused.param == key
            assert "{'" not in str(refused)


def user(**said: Any) -> dict[str, Any]:
    return CHAT | {"messages": [{"role": "user", **said}]}


PATHS: dict[str, tuple[dict[str, Any], str]] = {
    "a number for a text": (user(content=3), "messages[0].content"),
    "no content": (user(), "messages[0].content"),
    "a part that is none": (user(content=["x"]), "messages[0].content[0]"),
    "a part of another kind": (user(content=[{"type": "image_url"}]), "messages[0].content[0].type"),
    "a part without text": (user(content=[{"type": "text"}]), "messages[0].content[0].text"),
    "a part with more": (user(content=[{"type": "text", "text": "", "x": 1}]), "messages[0].content[0].x"),
    "no role": (CHAT | {"messages": [*CHAT["messages"], {"content": "x"}]}, "messages[1].role"),
    "no message": (CHAT | {"messages": ["x"]}, "messages[0]"),
    "calls of a user": (
        user(content="x", tool_calls=[{"id": "a", "function": {"name": "f", "arguments": "{}"}}]),
        "messages[0].tool_calls",
    ),
    "a tool of no name": (CHAT | {"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    "tools of one name": (CHAT | {"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools"),
    "an option of no stream": (CHAT | {"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    "a stop that is none": (CHAT | {"stop": ["a", 1]}, "stop[1]"),
    "a key with a line's end": (CHAT | {"a\nb": 1}, "a\\nb"),
    "a key of nothing": (CHAT | {"": 1}, "''"),
}


@pytest.mark.parametrize("what", PATHS)
def test_a_path_is_one_that_its_client_would_write(what: str) -> None:
    body, path = PATHS[what]
    refused = refusal(ChatAsk, body)
    assert refused.param == path
    assert str(refused).startswith(f"{path} ")


def test_what_is_long_is_not_said_back_at_length() -> None:
    """Keys, values, names of models, paths: whatever a client sends, its refusal is short."""
    x = "x" * LONG
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("completions", GOOD | {x: 1}),
        ("completions", GOOD | {"temperature": x}),
        ("completions", GOOD | {"model": "x" * 256}),
        ("completions", GOOD | {"model": x}),
        ("completions", GOOD | {"logit_bias": {x: 1}}),
        ("completions", GOOD | {"prompt": [x, 1]}),
        ("completions", GOOD | {"prompt": [int("9" * 4000)]}),
        ("completions", GOOD | {"max_tokens": int("9" * 4000)}),
        ("completions", GOOD | {"stream": True, "stream_options": {x: 1}}),
        ("chat/completions", user(content={x: 1})),
        ("chat/completions", CHAT | {"messages": [{"role": x, "content": ""}]}),
        ("chat/completions", CHAT | {"tools": [{"type": "function", "function": {"name": x}}]}),
        ("chat/completions", CHAT | {"tool_choice": x}),
    ]

    async def scenario(server: Served) -> None:
        answers = [await post(server, body, path) for path, body in bodies]
        async with httpx.AsyncClient() as client:
            for path in (f"nothing/{x[:30_000]}", f"models/{x[:30_000]}", f"sessions/{x[:30_000]}"):
                answers.append(await client.get(f"{server.url}/{path}"))
            headers = {"x-offbeat-session": x[:10_000], "authorization": f"Bearer none:{x[:10_001]}"}
            answers.append(await client.get(f"{server.url}/models", headers=headers))
            twice = [("x-offbeat-session", x[:10_000]), ("x-offbeat-session", x[:10_001])]
            answers.append(await client.get(f"{server.url}/models", headers=twice))
        for answer in answers:
            assert answer.status_code in (400, 404), answer.text[:200]
            assert len(answer.text) < 600, answer.text[:200]
            assert "..." in answer.json()["error"]["message"]

    run(scenario)
