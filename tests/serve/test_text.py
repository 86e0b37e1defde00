"""Pieces of text joined are the text of all tokens, whatever the tokens and however they come."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from offbeat.models.presets import character_tokenizer
from offbeat.models.tokens import decode_response
from offbeat.serve.text import TextStream

ENDS = (0,)


@cache
def byte_tokenizer() -> Any:
    """One token a byte, so that most characters take several, and an end of text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0} | {letter: index for index, letter in enumerate(alphabet, start=1)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


@cache
def tokenizer(name: str) -> Any:
    return byte_tokenizer() if name == "bytes" else character_tokenizer()


def chunks(data: st.DataObject, ids: list[int]) -> list[list[int]]:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(ids)))) | {0, len(ids)})
    return [ids[a:b] for a, b in pairwise(cuts)]


@given(st.data(), st.sampled_from(["bytes", "characters"]), st.text(max_size=20), st.booleans())
def test_pieces_join_to_the_whole(data: st.DataObject, name: str, text: str, ended: bool) -> None:
    speaks = tokenizer(name)
    ids = speaks.encode(text, add_special_tokens=False) + [0] * ended
    stream = TextStream(speaks, ENDS)
    pieces = [stream.add(chunk) for chunk in chunks(data, ids)] + [stream.finish()]
    assert "".join(pieces) == decode_response(speaks, ids, ENDS) == stream.text
    assert "\ufffd" not in "".join(pieces[:-1]) or "\ufffd" in text


@given(st.data(), st.lists(st.integers(1, 256), max_size=12))
def test_bytes_that_make_no_character_are_given_at_the_end_too(data: st.DataObject, ids: list[int]) -> None:
    stream = TextStream(byte_tokenizer(), ENDS)
    pieces = [stream.add(chunk) for chunk in chunks(data, ids)] + [stream.finish()]
    whole = decode_response(byte_tokenizer(), ids, ENDS)
    assert whole.startswith("".join(pieces[:-1]))
    assert "".join(pieces) == whole


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_before_the_first_stop_string(text: str, stops: list[str]) -> None:
    """Told one token at a time: the first prefix that holds a stop string decides."""
    speaks = tokenizer("characters")
    stream = TextStream(speaks, ENDS, stops)
    given_out = ""
    for token in speaks.encode(text, add_special_tokens=False):
        given_out += stream.add([token])
        assert not any(stop in given_out for stop in stops)
    given_out += stream.finish()
    expected = text
    for end in range(len(text) + 1):
        found = [text[:end].find(stop) for stop in stops if stop in text[:end]]
        if found:
            expected = text[: min(found)]
            break
    assert given_out == expected == stream.text
    assert stream.stopped == any(stop in text for stop in stops)
