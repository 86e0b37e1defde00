from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from offbeat.models.presets import BOS, CHARACTERS, EOS, PAD, UNKNOWN, character_tokenizer
from offbeat.models.tokens import BareTokenizer, decode_response, encode_prompt, encode_response, load_tokenizer

TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    character_tokenizer().save_pretrained(directory)
    return directory


@given(st.text(alphabet=CHARACTERS, max_size=80))
def test_every_text_of_printable_ascii_comes_back_exactly(text: str) -> None:
    tokenizer = _TOKENIZER
    assert decode_response(tokenizer, encode_response(tokenizer, text)) == text
    assert decode_response(tokenizer, encode_prompt(tokenizer, text)[1:]) == text
    assert len(encode_prompt(tokenizer, text)) == len(text) + 1


_TOKENIZER = character_tokenizer()


def test_the_saved_tokenizer_is_the_one_auto_tokenizer_loads(directory: Path) -> None:
    text = " a  b ,c .\n<pad> isn 't"
    plain, auto = load_tokenizer(directory), AutoTokenizer.from_pretrained(directory)
    assert isinstance(plain, BareTokenizer)
    assert encode_prompt(plain, text) == encode_prompt(auto, text) == auto(text)["input_ids"]
    assert auto.decode(auto(text)["input_ids"], skip_special_tokens=True) == text
    assert (auto.pad_token, auto.bos_token, auto.eos_token, auto.unk_token) == (PAD, BOS, EOS, UNKNOWN)


@given(st.text(max_size=40), st.lists(st.integers(0, len(_TOKENIZER) - 1), max_size=20), st.booleans())
def test_a_bare_tokenizer_says_what_transformers_says(
    directory: Path, text: str, ids: list[int], special: bool
) -> None:
    bare, whole = load_tokenizer(directory), PreTrainedTokenizerFast.from_pretrained(directory)
    text = text + BOS + text + EOS
    assert bare.encode(text, add_special_tokens=special) == whole.encode(text, add_special_tokens=special)
    assert (bare.bos_token_id, bare.eos_token_id, len(bare)) == (whole.bos_token_id, whole.eos_token_id, len(whole))
    options = {"skip_special_tokens": special, "clean_up_tokenization_spaces": False}
    assert bare.decode(ids, **options) == whole.decode(ids, **options)


@pytest.mark.parametrize(
    "change",
    [
        {"chat_template": TEMPLATE},
        {"additional_special_tokens": ["7"]},
        {"eos_token": "7"},
        {"eos_token": {"content": EOS, "__type": "AddedToken"}},
        {"tokenizer_class": "Qwen2TokenizerFast"},
    ],
)
def test_what_declares_more_than_names_is_loaded_by_transformers(
    directory: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    copied = Path(shutil.copytree(directory, tmp_path / "copy"))
    config = copied / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    assert not isinstance(load_tokenizer(copied), BareTokenizer)


def test_a_prompt_begins_with_bos_and_a_response_ends_with_eos() -> None:
    prompt, response = encode_prompt(_TOKENIZER, "ab"), encode_response(_TOKENIZER, "ab")
    assert prompt[0] == _TOKENIZER.bos_token_id
    assert response[-1] == _TOKENIZER.eos_token_id
    assert prompt[1:] == response[:-1]
    assert response.count(_TOKENIZER.eos_token_id) == 1


def test_without_bos_and_eos_nothing_is_added() -> None:
    tokenizer = character_tokenizer()
    tokenizer.bos_token = tokenizer.eos_token = None
    assert encode_prompt(tokenizer, "ab") == encode_response(tokenizer, "ab") == encode_prompt(_TOKENIZER, "ab")[1:]


def test_a_chat_template_is_used_up_to_where_the_answer_begins() -> None:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = TEMPLATE
    ids = encode_prompt(tokenizer, "1+1=")
    assert tokenizer.decode(ids) == "[user]1+1=\n[assistant]"


@pytest.mark.parametrize("special", [PAD, BOS, UNKNOWN, EOS])
def test_only_the_token_that_ends_a_response_is_left_out_of_its_text(special: str) -> None:
    """Else "1<unk>2" would be scored as "12"."""
    one, two, eos = _TOKENIZER.convert_tokens_to_ids(["1", "2", EOS])
    other = _TOKENIZER.convert_tokens_to_ids(special)
    assert decode_response(_TOKENIZER, [one, other, two, eos]) == f"1{special}2"
    assert decode_response(_TOKENIZER, [other, one, two]) == f"{special}12"
    assert decode_response(_TOKENIZER, [one, two, other, eos]) == f"12{special}"
    assert decode_response(_TOKENIZER, [one, two, other]) == ("12" if special == EOS else f"12{special}")
    assert decode_response(_TOKENIZER, [one, two, eos], ends=[other]) == ("12" if special == EOS else f"12{EOS}")


def test_an_empty_response_is_an_empty_text() -> None:
    assert decode_response(_TOKENIZER, []) == decode_response(_TOKENIZER, [_TOKENIZER.eos_token_id]) == ""


def test_a_tokenizer_without_eos_leaves_nothing_out() -> None:
    tokenizer = character_tokenizer()
    pad = tokenizer.pad_token_id
    tokenizer.eos_token = None
    assert decode_response(tokenizer, [pad]) == PAD


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError)):
        load_tokenizer(tmp_path)


def test_loading_and_using_a_plain_tokenizer_needs_no_torch(directory: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from offbeat.models import tokens, prepare_policy\n"
        f"t = tokens.load_tokenizer(Path({str(directory)!r}))\n"
        "assert tokens.decode_response(t, tokens.encode_response(t, '1+2=')) == '1+2='\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
