"""What OpenAI's own client gets: answers, streams, log-probs, models; checked against the engine itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.models.tokens import encode_prompt, load_tokenizer
from offbeat.ports import Completion
from offbeat.records import Span
from offbeat.rollout.engine import Engine
from offbeat.serve.answers import event

from .conftest import CONTEXT, Shelf, policy, served
from .test_refusals import CHAT, GOOD, post, run

ASK: dict[str, Any] = {"model": "tiny", "prompt": "12+30=", "max_tokens": 12, "seed": 5}


def scored(version: int, prompt_ids: list[int], token_ids: list[int]) -> list[float]:
    engine = Engine(policy(), slots=1, context=CONTEXT)
    engine.load(version, policy(version) / "model.safetensors")
    return engine.score(version, prompt_ids, token_ids)


def test_a_completion_carries_the_behaviour_logprobs_of_its_version() -> None:
    async def scenario() -> None:
        async with served(Shelf(0, 1)) as server:
            done = await server.client().completions.create(**ASK, logprobs=0, extra_body={"return_token_ids": True})
        (choice,) = done.choices
        assert done.model == "tiny@1"
        assert done.system_fingerprint == "version-1"
        assert done.model_extra["offbeat"] == {"version": 1, "session": None}
        token_ids = choice.model_extra["token_ids"]
        prompt_ids = encode_prompt(load_tokenizer(policy()), "12+30=")
        assert done.model_extra["prompt_token_ids"] == [prompt_ids]
        assert choice.logprobs.token_logprobs == pytest.approx(scored(1, prompt_ids, token_ids), abs=1e-4)
        assert len(choice.logprobs.tokens) == len(token_ids) == done.usage.completion_tokens
        assert done.usage.prompt_tokens == len(prompt_ids)
        assert "".join(choice.logprobs.tokens).startswith(choice.text)
        assert choice.finish_reason in ("stop", "length")

    asyncio.run(scenario())


def test_a_stream_joins_to_the_whole_answer() -> None:
    async def scenario() -> None:
        async with served() as server:
            client = server.client()
            whole = await client.completions.create(**ASK, n=3, logprobs=0)
            texts, logprobs, reasons = [""] * 3, [[] for _ in range(3)], [None] * 3
            usage = None
            stream = await client.completions.create(
                **ASK, n=3, logprobs=0, stream=True, stream_options={"include_usage": True}
            )
            async for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    texts[choice.index] += choice.text
                    logprobs[choice.index] += choice.logprobs.token_logprobs
                    reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            assert texts == [choice.text for choice in whole.choices]
            assert logprobs == [choice.logprobs.token_logprobs for choice in whole.choices]
            assert reasons == [choice.finish_reason for choice in whole.choices]
            assert usage == whole.usage
            assert len(set(texts)) == 3, "choices are seeded alike"
            await server.rest()

    asyncio.run(scenario())


def test_chat_is_asked_as_training_asks() -> None:
    """One user turn is the prompt a run would make of the same text; the last piece names the finish reason."""

    async def scenario() -> None:
        async with served() as server:
            client = server.client()
            messages = [{"role": "user", "content": [{"type": "text", "text": "12+30="}]}]
            asked = {"model": "tiny", "messages": messages, "seed": 5, "max_completion_tokens": 12}
            chat = await client.chat.completions.create(**asked, logprobs=True, extra_body={"return_token_ids": True})
            text = await client.completions.create(**ASK)
            assert chat.choices[0].message.content == text.choices[0].text
            assert chat.choices[0].message.role == "assistant"
            assert [one.logprob for one in chat.choices[0].logprobs.content] == pytest.approx(
                scored(0, chat.model_extra["prompt_token_ids"][0], chat.choices[0].model_extra["token_ids"]), abs=1e-4
            )
            content, last = "", None
            async for chunk in await client.chat.completions.create(**asked, stream=True):
                content += chunk.choices[0].delta.content or ""
                last = chunk.choices[0].finish_reason
            assert content == chat.choices[0].message.content
            assert last == chat.choices[0].finish_reason

    asyncio.run(scenario())


def test_stop_strings_end_text_tokens_and_call() -> None:
    async def scenario() -> None:
        async with served() as server:
            client = server.client()
            ask = ASK | {"max_tokens": 60, "logprobs": 0}
            free = (await client.completions.create(**ask)).choices[0]
            stop = free.text[4:6]
            cut = await client.completions.create(**ask, stop=stop)
            assert cut.choices[0].text == free.text[: free.text.index(stop)]
            assert cut.choices[0].finish_reason == "stop"
            tokens = cut.choices[0].logprobs.tokens
            assert "".join(tokens) == free.text[: free.text.index(stop)] + stop
            streamed = ""
            async for chunk in await client.completions.create(**ask, stop=[stop, "never"], stream=True):
                streamed += chunk.choices[0].text
            assert streamed == cut.choices[0].text
            await server.rest()
            ended = {ended.outcome for ended in server.ended[1:]}
            assert ended <= {"stop", "length"}, "an engine may have run ahead of who reads and stops it"

    asyncio.run(scenario())


def test_prompts_may_be_several_and_token_ids() -> None:
    async def scenario() -> None:
        async with served() as server:
            client = server.client()
            ids = encode_prompt(load_tokenizer(policy()), "12+30=")
            by_text = await client.completions.create(**ASK | {"prompt": ["12+30=", "7+1="]}, n=2)
            by_ids = await client.completions.create(**ASK | {"prompt": [ids, ids]}, n=2)
            assert [choice.index for choice in by_text.choices] == [0, 1, 2, 3]
            assert by_ids.choices[0].text == by_text.choices[0].text
            assert by_ids.choices[1].text == by_text.choices[1].text
            assert by_ids.usage.prompt_tokens == 2 * len(ids)

    asyncio.run(scenario())


def test_greedy_ignores_the_seed() -> None:
    async def scenario() -> None:
        async with served() as server:
            client = server.client()
            texts = [
                (await client.completions.create(**ASK | {"seed": seed}, temperature=0)).choices[0].text
                for seed in (1, 2)
            ]
            assert texts[0] == texts[1]

    asyncio.run(scenario())


def test_models_show_versions_and_an_older_one_is_taken_up_when_it_is_asked_for() -> None:
    async def scenario() -> None:
        async with served(Shelf(0, 1, 2)) as server:
            client = server.client()
            listed = [model async for model in client.models.list()]
            assert [model.id for model in listed] == ["tiny", "tiny@2", "tiny@1", "tiny@0"]
            assert [model.model_extra["offbeat"]["held"] for model in listed] == [True, True, False, False]
            old = await client.completions.create(**ASK | {"model": "tiny@1"})
            new = await client.completions.create(**ASK)
            assert (old.model, new.model) == ("tiny@1", "tiny@2")
            assert (await client.models.retrieve("tiny@1")).model_extra["offbeat"]["held"]

    asyncio.run(scenario())


def test_metrics_count_what_happened() -> None:
    async def scenario() -> str:
        from openai import BadRequestError

        async with served() as server:
            client = server.client(session="s")
            done = await client.completions.create(**ASK)
            with pytest.raises(BadRequestError):
                await client.completions.create(**ASK | {"max_tokens": 0})
            page = (await client._client.get(f"http://127.0.0.1:{server.port}/metrics")).text
            health = (await client._client.get(f"http://127.0.0.1:{server.port}/health")).json()
            assert health == {"status": "ok", "newest": 0, "published": 0}
            assert f"offbeat_sampled_tokens_total {float(done.usage.completion_tokens)}" in page
            return page

    page = asyncio.run(scenario())
    assert 'offbeat_http_answers_total{path="/v1/completions",status="200"} 1.0' in page
    assert 'offbeat_http_answers_total{path="/v1/completions",status="400"} 1.0' in page
    assert "offbeat_sessions 1.0" in page
    assert "offbeat_calls_under_way 0.0" in page
    assert "offbeat_newest_version 0.0" in page


@given(st.integers(0, 2**63 - 1), st.integers(1, 4))
@settings(max_examples=5, deadline=None)
def test_seeds_fix_every_choice(seed: int, n: int) -> None:
    async def scenario() -> None:
        async with served() as server:
            ask = ASK | {"seed": seed, "n": n, "max_tokens": 6}
            first, again = [await server.client().completions.create(**ask) for _ in range(2)]
            assert [c.text for c in first.choices] == [c.text for c in again.choices]

    asyncio.run(scenario())


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf"), float("inf")])
@pytest.mark.parametrize("wanted", [True, False])
def test_a_logprob_that_is_no_number_is_a_failure_that_is_said(logprob: float, wanted: bool) -> None:
    """JSON has no such number, and what was sampled with one is nonsense: its call fails, whatever was asked for."""

    class Broken(Engine):
        def step(self) -> list[Completion]:
            return [
                Completion(c.request_id, c.slot, tuple(broken(s) for s in c.spans), c.finish_reason)
                for c in super().step()
            ]

        def sampled(self, request_id: int, start: int = 0) -> tuple[Span, ...]:
            return tuple(broken(s) for s in super().sampled(request_id, start))

    def broken(span: Span) -> Span:
        return Span(span.version, span.token_ids, (logprob,) * len(span.token_ids))

    words = f"the engine sampled a token with log-prob {logprob}, which is not a finite number"

    async def scenario(server: Any) -> None:
        for path, body in (("completions", GOOD), ("chat/completions", CHAT)):
            ask = body | ({"logprobs": True if path.startswith("chat") else 0} if wanted else {})
            answer = await post(server, ask, path)
            assert answer.status_code == 500
            assert answer.json()["error"]["message"] == words
            streamed = await post(server, ask | {"stream": True}, path)
            (last,) = streamed.text.strip().split("\n\n")
            assert json.loads(last.removeprefix("data: "))["error"]["message"] == words
        await server.until(lambda: len(server.ended) == 4)
        assert {(one.outcome, one.reason) for one in server.ended} == {("failed", words)}

    run(scenario, engine=Broken)


def test_events_are_json() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        event({"logprob": float("nan")})
