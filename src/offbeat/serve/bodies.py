"""What a client may ask for: the bodies of completions and chat completions, every limit that needs no model checked.

A key that would change the answer and is not supported is refused by its name, never ignored. The few that only say
who asks are taken and not used. Field names are OpenAI's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import from_json

from offbeat.errors import OffbeatError
from offbeat.ports import Sampling
from offbeat.records import LEAST_TEMPERATURE
from offbeat.serve.complaints import PARTS, TEXT, Unfit, complaint, shown
from offbeat.serve.tools import MOST_TOOLS, Tool, ToolCall

UNUSED = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
)
NEUTRAL: dict[str, Any] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "best_of": 1,
    "echo": False,
    "suffix": "",
    "top_logprobs": 0,
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "functions": [],
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "min_p": 0,
    "repetition_penalty": 1,
}
"""Keys that are not supported, and the value at which each changes nothing."""


def _no_truth_value(value: Any) -> Any:
    """JSON's true and false are no numbers, whatever Python says."""
    if isinstance(value, bool):
        raise Unfit("", f"= {shown(value)}: give a number")
    return value


Whole = Annotated[int, BeforeValidator(_no_truth_value)]
Real = Annotated[float, BeforeValidator(_no_truth_value)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Tokens = Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1)]


class BadRequest(OffbeatError):
    """A request cannot be answered as it is; `param` is the key to blame, `code` OpenAI's word where there is one."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        self.param, self.code = param, code
        super().__init__(message)


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    include_usage: bool = False
    include_obfuscation: bool = False


class Ask(BaseModel):
    """What both kinds of request share. `top_k` and `return_token_ids` are extensions, spelled as vLLM's."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    model: str = Field(min_length=1, max_length=256)
    temperature: Real = Field(1.0, ge=0, le=10, allow_inf_nan=False)
    top_p: Real = Field(1.0, gt=0, le=1)
    top_k: Whole = Field(0, ge=0, le=1 << 31)
    seed: Whole | None = Field(None, ge=-(2**63), lt=2**63)
    n: Whole = Field(1, ge=1, le=128)
    stop: tuple[Stop, ...] = Field((), max_length=16)
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False

    @model_validator(mode="before")
    @classmethod
    def _without_what_changes_nothing(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        rest = {}
        for key, value in data.items():
            if key in UNUSED or value is None:
                continue
            if key in NEUTRAL and key not in cls.model_fields:
                neutral = NEUTRAL[key]
                if value != neutral or isinstance(value, bool) > isinstance(neutral, bool):
                    raise Unfit(key, f"= {shown(value)} is not supported; leave it out")
                continue
            rest[key] = value
        return rest

    @field_validator("temperature")
    @classmethod
    def _greedy_or_warm_enough(cls, temperature: float) -> float:
        if 0 < temperature < LEAST_TEMPERATURE:
            raise Unfit("", f"= {temperature:g}: give 0 (the most likely token) or at least {LEAST_TEMPERATURE:g}")
        return temperature

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_several(cls, stop: Any) -> Any:
        return (stop,) if isinstance(stop, str) else stop

    @model_validator(mode="after")
    def _options_of_a_stream(self) -> Ask:
        if self.stream_options is not None and not self.stream:
            raise Unfit("stream_options", "is allowed only with stream = true; leave it out, or stream")
        return self

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p)

    @property
    def most_tokens(self) -> int | None:
        """Response tokens at most; None: as many as there is room for."""
        raise NotImplementedError

    @property
    def wants_logprobs(self) -> bool:
        raise NotImplementedError

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionAsk(Ask):
    """`prompt`: a text, token ids, or a list of either."""

    prompt: str | Tokens | Annotated[list[str] | list[Tokens], Field(min_length=1, max_length=128)]
    max_tokens: Whole = Field(16, ge=1)
    logprobs: Whole | None = Field(None, ge=0, le=1)
    """1 as well as 0 gives the sampled tokens' log-probs only: the engine keeps no others."""

    @property
    def prompts(self) -> list[str | list[int]]:
        prompt: Any = self.prompt
        single = isinstance(prompt, str) or isinstance(prompt[0], int)
        return [prompt] if single else list(prompt)

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None


class TextPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    type: Literal["text"]
    text: str


class CalledFunction(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)
    name: str = Field(min_length=1, max_length=256)
    arguments: str


class CalledTool(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)
    id: str = Field(min_length=1, max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction

    @property
    def call(self) -> ToolCall:
        return ToolCall(self.id, self.function.name, self.function.arguments)


Content = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[list[TextPart], Tag(PARTS)],
    Discriminator(lambda content: PARTS if isinstance(content, list) else TEXT),
]


class Message(BaseModel):
    """A turn of a conversation. Only an assistant that calls tools may say nothing; other keys are not used."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    tool_calls: Annotated[list[CalledTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _something_said(self) -> Message:
        if self.content is None and not self.calls:
            raise Unfit("content", "is missing; only an assistant that calls tools may leave it out")
        if self.calls and self.role != "assistant":
            raise Unfit("tool_calls", f"are an assistant's, not of the role {self.role}; remove them")
        return self

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(called.call for called in self.tool_calls or ())

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @property
    def turn(self) -> dict[str, Any]:
        """As chat templates take it."""
        turn: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.text}
        if self.calls:
            turn["tool_calls"] = [call.shown for call in self.calls]
        if self.role == "tool":
            turn |= {key: value for key in ("name", "tool_call_id") if (value := getattr(self, key)) is not None}
        return turn


class ChatAsk(Ask):
    messages: list[Message] = Field(min_length=1, max_length=4096)
    max_tokens: Whole | None = Field(None, ge=1)
    max_completion_tokens: Whole | None = Field(None, ge=1)
    logprobs: bool = False
    tools: list[Tool] = Field([], max_length=MOST_TOOLS)
    tool_choice: Literal["none", "auto"] = "auto"
    """Nothing forces a model to call a tool, so no other choice is taken."""

    @model_validator(mode="after")
    def _tools_told_apart(self) -> ChatAsk:
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise Unfit("tools", "has two functions of the same name; name each in its own way")
        return self

    @property
    def shown_tools(self) -> list[dict[str, Any]]:
        """The tools the model is told of, as chat templates take them."""
        return [tool.shown for tool in self.tools] if self.tool_choice == "auto" else []

    @property
    def most_tokens(self) -> int | None:
        given = [n for n in (self.max_tokens, self.max_completion_tokens) if n is not None]
        return min(given, default=None)

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs


def read_ask(kind: type[CompletionAsk] | type[ChatAsk], body: bytes) -> CompletionAsk | ChatAsk:
    """The request in a body. Raises BadRequest, one line."""
    try:
        return kind.model_validate(from_json(body, allow_inf_nan=False))
    except ValidationError as error:
        raise BadRequest(*complaint(error.errors(include_url=False)[0])) from None
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
