"""What is wrong with a body, in one line: where, which value, what to do. Values and names are shown shortened.

Knows the errors of pydantic; no request and no status.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import ErrorDetails

MOST_SHOWN = 80
"""Characters of a client's own words that are said back to it."""
BRANCHES = TEXT, PARTS = "(text)", "(parts)"
"""Of the content of a message: pydantic names them behind it, but they are no part of a path."""
GIVE = {
    "model": "the name of one that GET /v1/models lists",
    "prompt": "a text, token ids, or a list of either",
    "messages": 'a list of {"role": ..., "content": ...}',
    "role": "system, developer, user, assistant or tool",
    "type": "the kind of the object",
    "text": "the text of the part",
    "function": "the function, with its name",
    "name": "the name of the function",
    "arguments": "a JSON object as text",
    "id": "the id that the call was answered with",
}
"""What stands under a required key."""
PROMPT = "give a text, token ids (whole numbers from 0), or a list of up to 128 of either, none of them empty"


class Unfit(ValueError):
    """What a validator refuses: the key below where it stands ("": that itself), and what is said after its path."""

    def __init__(self, key: str, words: str) -> None:
        self.key, self.words = key, words
        super().__init__(f"{key} {words}")


def cut(text: str, most: int = MOST_SHOWN) -> str:
    """A client's words on one line, `most` characters at most."""
    line = text if text.isprintable() else repr(text)[1:-1]
    return line if len(line) <= most else f"{line[: most - 3]}..."


def shown(value: Any) -> str:
    """A client's value, spelled as Python does."""
    return cut(repr(value))


def path_of(parts: Sequence[int | str]) -> str:
    """As a client would write it: `messages[0].content`."""
    path, last = "", None
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif last != "content" or part not in BRANCHES:
            name = part or repr(part)
            path += f".{name}" if path else name
        last = part
    return cut(path)


def complaint(error: ErrorDetails) -> tuple[str, str | None]:
    """One line, and the path of what it is about; None: the body itself."""
    wrong = error["ctx"]["error"] if error["type"] == "value_error" else None
    parts = (*error["loc"], wrong.key) if isinstance(wrong, Unfit) and wrong.key else error["loc"]
    path = path_of(parts)
    if isinstance(wrong, Unfit):
        return f"{path or 'the body'} {wrong.words}", path or None
    if error["type"] == "missing":
        return f"{path} is missing; give {GIVE.get(str(parts[-1]), 'it')}", path
    if parts[:1] == ("prompt",):
        return f"prompt = {shown(error['input'])}: {PROMPT}", "prompt"
    if error["type"] == "extra_forbidden":
        return f"{path} is not a known key; remove it", path
    return f"{path or 'the body'} = {shown(error['input'])}: {error['msg']}", path or None
