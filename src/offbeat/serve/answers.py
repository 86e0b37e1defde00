"""The objects a client gets, named as OpenAI's: answers, chunks of a stream, models, errors.

Beside them stands what is ours: `offbeat.version`, the version that sampled every token of the answer, and
`offbeat.session`. Knows tokens and texts; decides nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from offbeat.models.tokens import Tokenizer
from offbeat.serve.tools import ToolCall


@dataclass(frozen=True)
class Head:
    """What all parts of one answer have in common."""

    answer_id: str
    model: str
    version: int
    session: str | None
    chat: bool
    created: int = field(default_factory=lambda: int(time.time()))

    def around(self, choices: list[dict[str, Any]], streamed: bool) -> dict[str, Any]:
        kind = "chat.completion" if self.chat else "text_completion"
        return {
            "id": self.answer_id,
            "object": f"{kind}.chunk" if self.chat and streamed else kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"version-{self.version}",
            "choices": choices,
            "offbeat": {"version": self.version, "session": self.session},
        }


def choice(
    head: Head,
    index: int,
    text: str,
    logprobs: dict[str, Any] | None,
    finish_reason: str | None,
    role: bool | None,
    calls: Sequence[ToolCall] = (),
) -> dict[str, Any]:
    """One choice. `role`: does a chunk name the role (the first does)? None: the whole answer, not a chunk."""
    made: dict[str, Any] = {"index": index, "logprobs": logprobs, "finish_reason": finish_reason}
    if not head.chat:
        return made | {"text": text}
    said: dict[str, Any] = {"content": text if text or not calls else None}
    if role is not False:
        said["role"] = "assistant"
    if role is None:
        said["refusal"] = None
        return made | {"message": said | ({"tool_calls": [call.body for call in calls]} if calls else {})}
    numbered = [{"index": i} | call.body for i, call in enumerate(calls)]
    return made | {"delta": said | ({"tool_calls": numbered} if calls else {})}


class Logprobs:
    """Behaviour log-probs of the sampled tokens in either shape. `text_offset` goes on over the chunks of a stream."""

    def __init__(self, tokenizer: Tokenizer, chat: bool) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._offset = 0

    def of(self, token_ids: Sequence[int], behaviour_logprobs: Sequence[float]) -> dict[str, Any]:
        tokens = [
            self._tokenizer.decode([i], skip_special_tokens=False, clean_up_tokenization_spaces=False)
            for i in token_ids
        ]  # fmt: skip
        if self._chat:
            content = [
                {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}
                for token, logprob in zip(tokens, behaviour_logprobs, strict=True)
            ]
            return {"content": content, "refusal": None}
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": list(behaviour_logprobs),
            "top_logprobs": None,
            "text_offset": offsets,
        }


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def model_card(name: str, version: int, created: int, held: bool, newest: bool, root: str) -> dict[str, Any]:
    """An entry of the models list. `held`: calls are answered at once; otherwise the first one has it loaded."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "offbeat",
        "root": root,
        "offbeat": {"version": version, "held": held, "newest": newest},
    }


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def event(body: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(body, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
