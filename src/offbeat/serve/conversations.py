"""Token-exact sessions: the next turn goes on from the very tokens of the turns before, not from their text.

Law: where a conversation begins with the text of an earlier turn and its answer, its prompt begins with that turn's
prompt ids and the sampled ids, so that no token of an episode is ever encoded in another way than it was sampled.
Otherwise it is encoded anew. Knows a tokenizer; no versions and no HTTP.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple

from offbeat.models.tokens import Tokenizer, encode_rendered
from offbeat.serve.tools import ToolCall, as_object

BRANCHES = 4
"""Turns of a session that may be gone on from; an agent may try several ways to go on from one."""


class Turn(NamedTuple):
    """`text`: prompt and answer as the client knows them; `token_ids` [P + L]: what the model read and said."""

    text: str
    token_ids: tuple[int, ...]


class Called(NamedTuple):
    """What a client was told of an answer that calls tools, and the text the model wrote; `tokens` is their number."""

    calls: tuple[ToolCall, ...]
    content: str
    text: str
    tokens: int


class Conversations:
    """The last turns of sessions, up to `most_tokens` tokens in all; the sessions that rested longest go first."""

    def __init__(self, tokenizer: Tokenizer, ends: Collection[int], most_tokens: int = 1 << 22) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        self._most = most_tokens
        self._turns: OrderedDict[str, list[Turn]] = OrderedDict()
        self._called: dict[str, dict[str, Called]] = {}
        self.tokens = 0

    def said(self, session: str | None, calls: tuple[ToolCall, ...], content: str) -> str | None:
        """The text an answer with these calls had when the model wrote it; None where no such answer is known."""
        known = self._called.get(session or "", {}).get(calls[0].call_id)
        if known is None or known.content != content or len(calls) != len(known.calls):
            return None
        same = all(
            (mine.call_id, mine.name, as_object(mine.arguments)) == (own.call_id, own.name, as_object(own.arguments))
            for mine, own in zip(calls, known.calls, strict=True)
        )
        return known.text if same else None

    def called(self, session: str, called: Called) -> None:
        """A turn was answered with calls of tools. Remembered as long as its session is."""
        self._called.setdefault(session, {})[called.calls[0].call_id] = called
        self.tokens += called.tokens

    def prompt_ids(self, session: str | None, text: str) -> tuple[int, ...]:
        """Token ids [P] of a conversation that `models.tokens.rendered` gave."""
        known = [turn for turn in self._turns.get(session or "", ()) if text.startswith(turn.text)]
        if not known:
            return tuple(encode_rendered(self._tokenizer, text))
        turn = max(known, key=lambda turn: len(turn.text))
        rest = text[len(turn.text) :]
        if turn.token_ids[-1] in self._ends:
            rest = rest.removeprefix(self._spelled(turn.token_ids[-1]))
        return (*turn.token_ids, *self._tokenizer.encode(rest, add_special_tokens=False))

    def answered(self, session: str, text: str, token_ids: tuple[int, ...]) -> None:
        """A turn was answered; `text` is that of prompt and answer."""
        turns = self._turns.setdefault(session, [])
        self._turns.move_to_end(session)
        turns.append(Turn(text, token_ids))
        self.tokens += len(token_ids)
        if len(turns) > BRANCHES:
            self.tokens -= len(turns.pop(0).token_ids)
        while self.tokens > self._most and len(self._turns) > 1:
            self.forget(next(iter(self._turns)))

    def forget(self, session: str) -> None:
        self.tokens -= sum(len(turn.token_ids) for turn in self._turns.pop(session, ()))
        self.tokens -= sum(called.tokens for called in self._called.pop(session, {}).values())

    def _spelled(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False)
