"""What the learner gets of an episode is token for token what the policy read and said, through the endpoint itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from offbeat.agents.episodes import EpisodeHub, session_of
from offbeat.backends.agent_messages import AskTurn, RunEpisode, TurnIs
from offbeat.errors import EngineError
from offbeat.flow.pins import PinError
from offbeat.models.tokens import encode_prompt, load_tokenizer
from offbeat.records import Prompt, Span
from offbeat.serve.bodies import BadRequest, ChatAsk
from offbeat.serve.desk import Desk
from offbeat.serve.hub import Hub
from offbeat.settings import RolloutSettings
from tests.serve.conftest import policy

TOKENIZER = load_tokenizer(policy())
ROLLOUT = RolloutSettings(context=64, max_new_tokens=40)
Script = list[str]


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


class Played:
    """An episode of version 3 whose policy says what the script says; `eos` ends each turn where it is there."""

    def __init__(self, *script: str, rollout: RolloutSettings = ROLLOUT, version: int = 3) -> None:
        prompt = Prompt(0, "t", "ask:", "", tuple(encode_prompt(TOKENIZER, "ask:")))
        self.asked = RunEpisode(7, 1, 3, prompt)
        self.script = list(script)
        self.heard: list[AskTurn] = []
        self.version = version
        self.hub = EpisodeHub(policy(), rollout, self.hear)
        self.desk = Desk(cast(Hub, self.hub), "policy")
        self.episode = self.hub.begin(self.asked)

    def hear(self, turn: AskTurn) -> None:
        self.heard.append(turn)
        said = self.script.pop(0)
        tokens = ids(said.removesuffix("$")) + ([TOKENIZER.eos_token_id] if said.endswith("$") else [])
        tokens = tokens[: turn.max_new_tokens]
        span = Span(self.version, tuple(tokens), tuple(-0.5 for _ in tokens))
        reason = "stop" if tokens[-1] == TOKENIZER.eos_token_id else "length"
        answer = TurnIs(turn.trajectory_id, turn.attempt, turn.turn, span, reason)  # type: ignore[arg-type]
        asyncio.get_running_loop().call_soon(self.hub.answered, answer)

    async def say(self, *contents: str, stop: tuple[str, ...] = (), **more: Any) -> str:
        roles = ["user", *["assistant", "tool"] * len(contents)]
        messages = [{"role": role, "content": text} for role, text in zip(roles, ("ask:", *contents), strict=False)]
        ask = ChatAsk.model_validate({"model": "policy", "messages": messages, "stop": stop} | more)
        asked = await self.desk.asked(ask, session_of(self.asked))
        with self.desk.calls(asked) as [call]:
            return "".join([delta.text async for delta in self.desk.answer(asked, 0, call)])


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


def test_given_tokens_are_masked_and_said_ones_are_not() -> None:
    async def scenario() -> None:
        played = Played("<1+1>", "2$")
        assert await played.say(stop=(">",)) == "<1+1"
        assert await played.say("<1+1", "2;") == "2"
        done = played.episode.ended(1.0)
        assert (done.trajectory_id, done.attempt, done.reward, done.finish_reason) == (7, 1, 1.0, "stop")
        said, given = "<1+1>", "2;"
        assert done.span.token_ids == (*ids(said + given + "2"), TOKENIZER.eos_token_id)
        assert done.span.loss_mask == (True,) * len(said) + (False,) * len(given) + (True, True)
        assert done.span.behaviour_logprobs == (-0.5,) * len(said) + (0.0,) * len(given) + (-0.5, -0.5)
        assert done.span.version == 3
        assert played.heard[1].context_ids == (*played.asked.prompt.token_ids, *ids(said + given))

    run(scenario)


def test_the_end_of_a_turn_stays_in_the_context_of_the_next() -> None:
    async def scenario() -> None:
        played = Played("a$", "b$")
        assert await played.say() == "a"
        assert await played.say("a", "more") == "b"
        tokens = played.episode.ended(0.0).span.token_ids
        assert tokens == (*ids("a"), TOKENIZER.eos_token_id, *ids("moreb"), TOKENIZER.eos_token_id)

    run(scenario)


def test_what_was_sampled_beyond_a_stop_string_was_never_said() -> None:
    async def scenario() -> None:
        played = Played("ab>junk", "c$")
        assert await played.say(stop=(">",)) == "ab"
        assert await played.say("ab", "!") == "c"
        done = played.episode.ended(0.0)
        assert done.span.token_ids == (*ids("ab>!c"), TOKENIZER.eos_token_id)

    run(scenario)


def test_what_is_given_after_the_last_turn_is_no_part_of_it() -> None:
    async def scenario() -> None:
        played = Played("a$")
        await played.say()
        assert played.episode.ended(0.0).span.loss_mask is None

    run(scenario)


def test_an_episode_only_grows() -> None:
    async def scenario() -> None:
        played = Played("a$", "b$")
        await played.say()
        for changed in (("A", "x"), ()):
            with pytest.raises(BadRequest, match="only grows") as refused:
                await played.say(*changed)
            assert refused.value.code == "conversation_changed"
        assert await played.say("a", "x") == "b"

    run(scenario)


def test_turns_end_where_the_run_allows_no_more_tokens() -> None:
    async def scenario() -> None:
        played = Played("x" * 100, "never", rollout=RolloutSettings(context=64, max_new_tokens=10))
        assert await played.say() == "x" * 10
        with pytest.raises(BadRequest) as refused:
            await played.say("x" * 10, "y")
        assert refused.value.code == "context_length_exceeded"
        assert played.episode.ended(0.0).finish_reason == "length"

    run(scenario)


def test_sampling_is_the_runs() -> None:
    async def scenario() -> None:
        played = Played("a$")
        with pytest.raises(BadRequest, match="settings say how"):
            await played.say(temperature=0.5)
        with pytest.raises(BadRequest, match="one response"):
            await played.say(n=2)
        assert await played.say(temperature=1.0) == "a"

    run(scenario)


def test_a_turn_of_another_version_fails() -> None:
    """C1 is watched where the tokens arrive, too."""

    async def scenario() -> None:
        played = Played("a$", version=4)
        with pytest.raises(EngineError, match="version 4 sampled tokens of a call of version 3"):
            await played.say()
        with pytest.raises(EngineError, match="without a token"):
            played.episode.ended(1.0)

    run(scenario)


def test_episodes_that_are_over_are_not_answered_any_more() -> None:
    async def scenario() -> None:
        played = Played("a$")
        played.hub.end(played.asked)
        with pytest.raises(PinError, match="no episode"):
            await played.say()
        assert not played.hub.pins.held

    run(scenario)


def test_late_answers_are_dropped() -> None:
    """Of a turn whose client left, and of an attempt that was given up."""

    async def scenario() -> None:
        played = Played("a$", "b$")
        leaving = asyncio.create_task(played.say())
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert await played.say() == "b"
        assert played.heard[-1].turn == 2
        assert played.episode.ended(0.0).span.token_ids == (*ids("b"), TOKENIZER.eos_token_id)

    run(scenario)
