"""Tools of a chat: how a client names them, and the calls a model writes, found in its text.

Law: a call is one only where it is well-formed JSON and names a tool of the request; everything else stays text. What
a stream gives out is at every moment a beginning of the text of the whole answer. Two spellings: Hermes's and Qwen's
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them, and Llama 3's answer that is nothing but
`{"name": ..., "parameters": {...}}`. Knows no tokenizer and no HTTP.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Collection
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

from pydantic import BaseModel, ConfigDict, Field, field_validator

from offbeat.serve.complaints import Unfit

OPEN, CLOSE = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
MOST_TOOLS = 128
_BLOCK = re.compile(re.escape(OPEN) + r"(.*?)" + re.escape(CLOSE), re.DOTALL)

ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Function(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Taken and not kept to: nothing forces arguments into a schema."""

    @field_validator("parameters")
    @classmethod
    def _can_be_written(cls, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        try:
            json.dumps(parameters, allow_nan=False)
        except ValueError:
            raise Unfit("", "holds a number that no float can hold, such as 1e999; give finite ones") from None
        return parameters


class Tool(BaseModel):
    """A tool as OpenAI's clients name it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    type: Literal["function"]
    function: Function

    @property
    def shown(self) -> dict[str, Any]:
        """As chat templates take it."""
        return {"type": "function", "function": self.function.model_dump(exclude={"strict"}, exclude_none=True)}


class ToolCall(NamedTuple):
    """`arguments` is a JSON object as text."""

    call_id: str
    name: str
    arguments: str

    @property
    def body(self) -> dict[str, Any]:
        return {"id": self.call_id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}

    @property
    def shown(self) -> dict[str, Any]:
        """As chat templates take it: arguments as an object."""
        return self.body | {"function": {"name": self.name, "arguments": as_object(self.arguments)}}


def as_object(arguments: str) -> Any:
    """The JSON in `arguments`, or the text itself where it is none."""
    try:
        return json.loads(arguments, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        return arguments


def _no_number(spelled: str) -> NoReturn:
    """JSON knows no NaN and no infinity."""
    raise ValueError(spelled)


def _finite(spelled: str) -> float:
    """One that no float can hold could not be written down again."""
    number = float(spelled)
    return number if math.isfinite(number) else _no_number(spelled)


def find_calls(text: str, names: Collection[str]) -> tuple[str, tuple[ToolCall, ...]]:
    """The text outside the calls of the tools `names`, and those calls. Without any, the text as it is."""
    bare = _call(text.strip().removeprefix(PYTHON_TAG), names)
    if bare is not None:
        return "", (bare,)
    calls: list[ToolCall] = []

    def taken(block: re.Match[str]) -> str:
        call = _call(block[1], names)
        if call is None:
            return block[0]
        calls.append(call)
        return ""

    rest = _BLOCK.sub(taken, text)
    return (rest.rstrip() if calls else text), tuple(calls)


def _call(text: str, names: Collection[str]) -> ToolCall | None:
    said = as_object(text.strip())
    if not isinstance(said, dict) or not isinstance(said.get("name"), str) or said["name"] not in names:
        return None
    arguments = said.get("arguments", said.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = as_object(arguments)
    if not isinstance(arguments, dict):
        return None
    return ToolCall(f"call_{secrets.token_hex(12)}", said["name"], json.dumps(arguments, ensure_ascii=False))


class ToolStream:
    """The text of an answer as it comes, without its calls: what may be one is held until the answer is whole."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._text = ""
        self._given = 0

    def add(self, text: str) -> str:
        """Take more text; what can be given out."""
        self._text += text
        return self._give(self._text[: self._certain()])

    def finish(self) -> tuple[str, tuple[ToolCall, ...]]:
        """The rest of the text, and the calls."""
        content, calls = find_calls(self._text, self._names)
        return self._give(content), calls

    def _give(self, content: str) -> str:
        fresh = content[self._given :]
        self._given = max(self._given, len(content))
        return fresh

    def _certain(self) -> int:
        """How much of the text is no call, whatever follows. White space before one belongs to none of them."""
        start = self._text.lstrip()
        if start.startswith(("{", PYTHON_TAG)) or PYTHON_TAG.startswith(start):
            return 0
        end = self._text.find(OPEN)
        if end < 0:
            end = len(self._text)
            end -= next((n for n in range(len(OPEN) - 1, 0, -1) if self._text.endswith(OPEN[:n])), 0)
        return len(self._text[:end].rstrip())
