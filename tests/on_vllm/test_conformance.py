"""vLLM passes the conformance suite of the `Generator` port, against the real wheel: `make test-vllm`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is in an environment of its own; `make vllm test-vllm` runs these")

from offbeat.testing.contract import GENERATOR_LAWS, GeneratorCase, check_generator
from tests.on_vllm.tiny import CONTEXT, VOCAB, full_weights, weights


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


def test_whole_suite_on_another_family(tmp_path: Path) -> None:
    check_generator(full_case("qwen3", False, tmp_path))
