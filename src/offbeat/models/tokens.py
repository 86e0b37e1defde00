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
_NAMES = frozenset({"bos_token", "eos_token", "pad_token", "unk_token"})
_BARE_KEYS = _NAMES | {"tokenizer_class", "backend", "model_max_length", "clean_up_tokenization_spaces"}
_MORE_FILES = ("chat_template.jinja", "chat_template.json", "special_tokens_map.json", "added_tokens.json")
"""Where a directory has one of them, its tokenizer is more than its tokenizer.json."""


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


class BareTokenizer:
    """A tokenizer that is nothing but its tokenizer.json and the names of four of its special tokens, such as those of
    the presets: by `tokenizers` alone, for importing `transformers` takes a second of every start."""

    chat_template = None

    def __init__(self, inner: Any, names: Mapping[str, str]) -> None:
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self.bos_token_id, self.eos_token_id = (
            inner.token_to_id(names[name]) if name in names else None for name in ("bos_token", "eos_token")
        )

    @classmethod
    def of(cls, directory: Path, declared: Mapping[str, Any]) -> BareTokenizer | None:
        """None where the directory declares more than that."""
        if not declared.keys() <= _BARE_KEYS or any((directory / name).exists() for name in _MORE_FILES):
            return None
        import tokenizers

        inner = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        special = {token.content for token in inner.get_added_tokens_decoder().values() if token.special}
        names = {name: declared[name] for name in _NAMES if declared.get(name) is not None}
        known = all(isinstance(token, str) and token in special for token in names.values())
        return cls(inner, names) if known else None

    def __len__(self) -> int:
        return int(self._inner.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self._inner.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        if clean_up_tokenization_spaces:
            raise ValueError("a bare tokenizer leaves spaces as they are")
        return str(self._inner.decode(token_ids, skip_special_tokens=skip_special_tokens))

    def apply_chat_template(self, conversation: list[dict[str, Any]], **_: Any) -> str:
        raise ValueError("this tokenizer has no chat template")


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
        bare = BareTokenizer.of(directory, declared)
        if bare is not None:
            return bare
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
