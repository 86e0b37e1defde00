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

BRANCHES = 4
"""Turns of a session that may be gone on from; an agent may try several ways to go on from one."""


class Turn(NamedTuple):
    """`text`: prompt and answer as the client knows them; `token_ids` [P + L]: what the model read and said."""

    text: str
    token_ids: tuple[int, ...]


class Conversations:
    """The last turns of sessions, up to `most_tokens` tokens in all; the sessions that rested longest go first."""

    def __init__(self, tokenizer: Tokenizer, ends: Collection[int], most_tokens: int = 1 << 22) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        self._most = most_tokens
        self._turns: OrderedDict[str, list[Turn]] = OrderedDict()
        self.tokens = 0

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

    def _spelled(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False)
