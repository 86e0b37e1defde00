"""From what a client asks to calls and back to text: models by name, prompts, limits, answers.

Invariants: what cannot be answered is refused before anything is begun; text and tokens of an answer end at the same
stop string. Knows a tokenizer and a hub; HTTP is `app`'s.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from offbeat.eventtime.streams import stream_seed
from offbeat.flow.pins import PinError
from offbeat.models.tokens import encode_rendered, load_tokenizer, rendered
from offbeat.rollout.config import read_shape
from offbeat.serve.bodies import Ask, BadRequest, ChatAsk, CompletionAsk, Message
from offbeat.serve.calls import Call
from offbeat.serve.complaints import cut, shown
from offbeat.serve.conversations import Called, Conversations
from offbeat.serve.hub import Hub, Order
from offbeat.serve.text import TextStream
from offbeat.serve.tools import ToolCall, ToolStream


class Delta(NamedTuple):
    """What is new of choice number `choice`; `finish_reason` with the last."""

    choice: int
    text: str
    token_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    finish_reason: str | None
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A request that can be answered: its orders, `ask.n` for each prompt, and the text of each prompt."""

    ask: Ask
    session: str | None
    version: int | None
    orders: tuple[Order, ...]
    texts: tuple[str, ...]

    @property
    def tools(self) -> frozenset[str]:
        """Names of the tools the model was told of."""
        shown = self.ask.shown_tools if isinstance(self.ask, ChatAsk) else []
        return frozenset(tool["function"]["name"] for tool in shown)

    @property
    def prompt_tokens(self) -> int:
        return sum(len(order.prompt_ids) for order in self.orders[:: self.ask.n])


class Desk:
    """`name` is the model's: alone it means the newest version, `name@12` version 12."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub = hub
        self.name = name
        self.tokenizer = load_tokenizer(hub.source.policy)
        shape = read_shape(hub.source.policy)
        self._vocab, self.ends = shape.vocab, shape.eos_ids
        self.conversations = Conversations(self.tokenizer, self.ends)

    # -- models ------------------------------------------------------------------------------------------------

    def version_of(self, model: str) -> int | None:
        """The version a model's name means; None: the newest. Raises PinError for another model's name."""
        if model == self.name:
            return None
        base, _, number = model.rpartition("@")
        if base == self.name and number.isascii() and number.isdigit() and len(number) < 10:
            return int(number)
        raise PinError("unknown-version", f"model {shown(model)} is not there; this server has {self.name!r}")

    def model_of(self, version: int) -> str:
        return f"{self.name}@{version}"

    # -- asking ------------------------------------------------------------------------------------------------

    async def asked(self, ask: Ask, session: str | None) -> Asked:
        """Check a request and have its version held. Raises BadRequest and PinError."""
        version = self.version_of(ask.model)
        made = Asked(ask, session, version, *self._orders(ask, session))
        if version is not None and version not in self.hub.pins.held:
            await self.hub.have(version)
        return made

    def _orders(self, ask: Ask, session: str | None) -> tuple[tuple[Order, ...], tuple[str, ...]]:
        prompts = self._prompts(ask, session)
        if len(prompts) * ask.n > self.hub.options.max_calls:
            raise BadRequest(f"{len(prompts) * ask.n} responses: more than {self.hub.options.max_calls} at once", "n")
        seed = secrets.randbits(63) if ask.seed is None else ask.seed
        orders = []
        for at, (_, prompt_ids) in enumerate(prompts):
            most = self._most(ask, prompt_ids)
            for i in range(ask.n):
                own = seed if len(prompts) == ask.n == 1 else stream_seed(seed, "choice", at * ask.n + i)
                orders.append(Order(prompt_ids, most, own, ask.sampling))
        return tuple(orders), tuple(text for text, _ in prompts)

    def _prompts(self, ask: Ask, session: str | None) -> list[tuple[str, tuple[int, ...]]]:
        """Text and token ids of every prompt."""
        if isinstance(ask, ChatAsk):
            if (ask.shown_tools or any(m.calls for m in ask.messages)) and not self.tokenizer.chat_template:
                raise BadRequest("tools: the model has no chat template that would tell it of them", "tools")
            try:
                text = rendered(self.tokenizer, [self._turn(m, session) for m in ask.messages], ask.shown_tools)
            except Exception as error:  # a model's template is foreign code: it refuses roles and orders in its own way
                words = (str(error).splitlines() or [type(error).__name__])[0]
                raise BadRequest(
                    f"the model's chat template refuses these messages: {cut(words, 300)}", "messages"
                ) from None
            return [(text, self.conversations.prompt_ids(session, text))]
        assert isinstance(ask, CompletionAsk)
        return [
            (p, tuple(encode_rendered(self.tokenizer, p))) if isinstance(p, str) else ("", tuple(p))
            for p in ask.prompts
        ]  # fmt: skip

    def _turn(self, message: Message, session: str | None) -> dict[str, Any]:
        """As chat templates take it. Calls that this session's model has made are what it wrote, word for word."""
        said = self.conversations.said(session, message.calls, message.text) if message.calls else None
        return message.turn if said is None else {"role": "assistant", "content": said}

    def _most(self, ask: Ask, prompt_ids: tuple[int, ...]) -> int:
        """Response tokens of a prompt at most."""
        options, where = self.hub.options, "messages" if isinstance(ask, ChatAsk) else "prompt"
        if not prompt_ids:
            raise BadRequest("the prompt has no tokens; give at least one", where)
        if max(prompt_ids) >= self._vocab:
            raise BadRequest(f"token id {shown(max(prompt_ids))} is outside the vocabulary of {self._vocab}", where)
        room, wanted = options.context - len(prompt_ids), ask.most_tokens
        if wanted is not None and wanted > options.max_new_tokens:
            raise BadRequest(
                f"max_tokens = {shown(wanted)}: at most {options.max_new_tokens} may be asked for", "max_tokens"
            )
        if room < (wanted or 1):
            raise BadRequest(
                f"{len(prompt_ids)} tokens of prompt and {wanted or 1} of response do not fit the context length"
                f" of {options.context} tokens",
                where,
                "context_length_exceeded",
            )
        return wanted or min(room, options.max_new_tokens)

    # -- answering ---------------------------------------------------------------------------------------------

    @contextmanager
    def calls(self, asked: Asked) -> Iterator[list[Call]]:
        """Begin and end the calls of a request. Raises Busy, PinError, EngineError."""
        with self.hub.call(asked.orders, asked.session, asked.version) as calls:
            yield calls

    async def answer(self, asked: Asked, index: int, call: Call) -> AsyncGenerator[Delta]:
        """The pieces of choice `index`. Raises EngineError where it fails."""
        stream = TextStream(self.tokenizer, self.ends, asked.ask.stop)
        tools = asked.tools
        called = ToolStream(tools) if tools else None
        content, calls = "", tuple[ToolCall, ...]()
        token_ids: tuple[int, ...] = ()
        async for piece in call.pieces():
            text, taken, over = self._taken(stream, piece.token_ids, piece.finish_reason is not None)
            token_ids += piece.token_ids[:taken]
            call.taken += taken
            reason: str | None = "stop" if stream.stopped else piece.finish_reason
            if called is not None:
                text = called.add(text)
                if over:
                    rest, calls = called.finish()
                    text += rest
                    reason = "tool_calls" if calls and reason == "stop" else reason
                content += text
            if over and asked.session is not None and isinstance(asked.ask, ChatAsk):
                said = asked.texts[0] + stream.text
                self.conversations.answered(asked.session, said, (*call.request.prompt_ids, *token_ids))
                if calls:
                    self.conversations.called(asked.session, Called(calls, content, stream.text, len(token_ids)))
            call.satisfied = over
            if over:
                call.settled()
            yield Delta(index, text, piece.token_ids[:taken], piece.behaviour_logprobs[:taken], reason, calls)
            if over:
                return

    @staticmethod
    def _taken(stream: TextStream, token_ids: Sequence[int], last: bool) -> tuple[str, int, bool]:
        """Text of these tokens, how many of them belong to the answer, and whether it is over."""
        text = ""
        for taken, token_id in enumerate(token_ids, start=1):
            text += stream.add((token_id,))
            if stream.stopped:
                return text, taken, True
        return text + (stream.finish() if last else ""), len(token_ids), last or stream.stopped

    def models(self) -> list[dict[str, Any]]:
        """(name, version, held, newest) of every model there is: the newest first, under the plain name, too."""
        pins = self.hub.pins
        listed = [] if pins.newest is None else [{"name": self.name, "version": pins.newest}]
        listed += [
            {"name": self.model_of(version), "version": version}
            for version in sorted(pins.published | pins.held, reverse=True)
        ]
        return [one | {"held": one["version"] in pins.held, "newest": one["version"] == pins.newest} for one in listed]
