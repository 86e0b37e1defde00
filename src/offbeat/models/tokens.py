"""Text to token ids and back, for warm start, rollout and reward alike: the one place that decides.

Invariant: a prompt is encoded the same way wherever it is encoded, and a reward sees every special token of a
response but the one that ended it: "1<unk>2" is never taken for "12".
Importing this file, and loading a tokenizer that needs no code of its own, stays clear of torch.
Knows no task, no model and no settings.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

_PLAIN_CLASSES = frozenset({"PreTrainedTokenizerFast", "TokenizersBackend"})
"""Tokenizers wholly described by their tokenizer.json; `AutoTokenizer` adds nothing to them but an import of torch."""


class Tokenizer(Protocol):
    """What offbeat uses of a Hugging Face tokenizer."""

    bos_token_id: int | None
    eos_token_id: int | None
    chat_template: Any

    def __len__(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str: ...

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool,
        tokenize: bool,
    ) -> str: ...


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face directory. Raises OSError or ValueError where there is none or it is damaged."""
    try:
        return _loaded(directory)
    except (OSError, ValueError):
        raise
    except Exception as error:  # a damaged file may show anywhere in the libraries, also as a bare Exception
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _loaded(directory: Path) -> Tokenizer:
    config = directory / "tokenizer_config.json"
    declared = json.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
    plain = isinstance(declared, dict) and declared.get("tokenizer_class") in _PLAIN_CLASSES
    if plain and (directory / "tokenizer.json").exists():
        from transformers import PreTrainedTokenizerFast

        return cast(Tokenizer, PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True))
    from transformers import AutoTokenizer

    return cast(Tokenizer, AutoTokenizer.from_pretrained(directory, local_files_only=True))


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids [P] of a prompt: one user turn of the chat template up to where the answer begins, where the
    tokenizer has a template; otherwise the text after BOS, where it has a BOS.
    """
    return encode_rendered(tokenizer, rendered(tokenizer, [{"role": "user", "content": text}]))


def rendered(tokenizer: Tokenizer, turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """The text of a conversation up to where the next answer begins: by the chat template, which tells of the `tools`,
    or without one what was said, one after the other. Raises what the template raises."""
    if tokenizer.chat_template:
        told = [dict(tool) for tool in tools] or None
        return tokenizer.apply_chat_template(
            [dict(turn) for turn in turns], tools=told, add_generation_prompt=True, tokenize=False
        )
    return "".join(turn["content"] for turn in turns)


def encode_rendered(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of what `rendered` gives. A template writes the tokens a text begins with itself."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    bare = tokenizer.chat_template or tokenizer.bos_token_id is None
    return ids if bare else [cast(int, tokenizer.bos_token_id), *ids]


def encode_response(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids [L] of a complete response: the text and then EOS, where the tokenizer has one."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    return ids if tokenizer.eos_token_id is None else [*ids, tokenizer.eos_token_id]


def decode_response(tokenizer: Tokenizer, ids: Sequence[int], ends: Collection[int | None] | None = None) -> str:
    """The text of a response without the last token, where that is one of `ends` (by default EOS). All other special
    tokens are spelled out, and spaces are as they are.
    """
    ends = (tokenizer.eos_token_id,) if ends is None else ends
    kept = ids[:-1] if ids and ids[-1] in ends else ids
    return tokenizer.decode(list(kept), skip_special_tokens=False, clean_up_tokenization_spaces=False)
