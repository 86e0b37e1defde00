"""vLLM passes the conformance suite of the `Generator` port, against the real wheel: `make test-vllm`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is in an environment of its own; `make vllm test-vllm` runs these")

from offbeat.testing.contract import GENERATOR_LAWS, GeneratorCase, check_generator
from tests.on_vllm.tiny import CONTEXT, VOCAB, adapters, built, full_weights, weights
from tests.rollout.tiny import write_adapter


def full_case(family: str, tied: bool, tmp_path: Path) -> GeneratorCase:
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(weights(family, tied).read_bytes()[:-100])
    return GeneratorCase(
        make=full_weights(family, tied).fresh,
        weights=(weights(family, tied, 0), weights(family, tied, 1)),
        damaged=damaged,
        vocab=VOCAB,
        context=CONTEXT,
        holds=1,
    )


@pytest.mark.parametrize("law", GENERATOR_LAWS)
def test_law_with_full_weights(law: str, tmp_path: Path) -> None:
    GENERATOR_LAWS[law](full_case("llama", True, tmp_path))


def adapters_case(tmp_path: Path, kv_tokens: int | None = None) -> GeneratorCase:
    model_dir = built("llama", True)[1]
    files = [write_adapter(tmp_path / f"{seed}.safetensors", model_dir, seed) for seed in (1, 2)]
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(files[0].read_bytes()[:-100])
    return GeneratorCase(adapters("llama", True, kv_tokens).fresh, (files[0], files[1]), damaged, VOCAB, CONTEXT)


@pytest.mark.parametrize("law", GENERATOR_LAWS)
def test_law_with_adapters(law: str, tmp_path: Path) -> None:
    """Both versions live in one engine and one batch."""
    GENERATOR_LAWS[law](adapters_case(tmp_path))


@pytest.mark.parametrize("law", ["each_answered_once", "logprobs_are_those_of_the_version", "detached_go_on_elsewhere"])
def test_law_while_there_is_no_room_for_all_keys_and_values(law: str, tmp_path: Path) -> None:
    """vLLM throws out what does not fit and computes it again: nobody notices."""
    GENERATOR_LAWS[law](adapters_case(tmp_path, kv_tokens=CONTEXT))


def test_whole_suite_on_another_family(tmp_path: Path) -> None:
    check_generator(full_case("qwen3", False, tmp_path))
