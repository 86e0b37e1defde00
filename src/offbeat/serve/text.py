"""Token ids to text as they come: only text that no later token changes, cut at the first stop string.

Law: the pieces joined are the text of all tokens, as `models.tokens.decode_response` gives it, up to a stop string.
Knows a tokenizer; no calls and no HTTP.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from offbeat.models.tokens import Tokenizer, decode_response

UNFINISHED = "\ufffd"
"""What a decoder shows for bytes that do not make a character yet."""


class TextStream:
    """`ends` are the token ids that end a response and are no part of its text. `stopped`: a stop string was met."""

    def __init__(self, tokenizer: Tokenizer, ends: Collection[int | None], stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        self._stops = tuple(stops)
        self._ids: list[int] = []
        self._settled = 0
        """Tokens whose text is certain; `_window` is where the text of the next ones is decoded from."""
        self._window = 0
        self._text = ""
        self._given = 0
        self.stopped = False

    @property
    def text(self) -> str:
        """All that was given out."""
        return self._text[: self._given]

    def add(self, token_ids: Sequence[int]) -> str:
        """Take new tokens; the text that is certain now. Nothing more after a stop string."""
        if self.stopped:
            return ""
        self._ids += token_ids
        known = self._decoded(self._ids[self._window : self._settled])
        fresh = self._decoded(self._ids[self._window :])
        if not fresh.endswith(UNFINISHED):
            self._text += fresh[len(known) :]
            self._window, self._settled = self._settled, len(self._ids)
        return self._give(whole=False)

    def finish(self) -> str:
        """The rest of the text: there are no more tokens."""
        if self.stopped:
            return ""
        whole = decode_response(self._tokenizer, self._ids, self._ends)
        if whole.startswith(self._text[: self._given]):
            self._text = whole
        return self._give(whole=True)

    def _decoded(self, ids: Sequence[int]) -> str:
        return decode_response(self._tokenizer, ids, self._ends)

    def _give(self, whole: bool) -> str:
        """Give out what neither is in a stop string nor may be the beginning of one."""
        end = len(self._text)
        found = [at for at in (self._text.find(stop, self._searched()) for stop in self._stops) if at >= 0]
        if found:
            end, self.stopped = min(found), True
        elif not whole:
            end -= max((_overlap(self._text, stop) for stop in self._stops), default=0)
        fresh = self._text[self._given : end]
        self._given = max(self._given, end)
        if self.stopped:
            self._text = self._text[:end]
        return fresh

    def _searched(self) -> int:
        """Where a stop string may begin: what was given out holds none."""
        return self._given


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with, less than all of it."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
