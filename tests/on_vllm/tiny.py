"""Tiny random models of shapes that vLLM's CPU kernels take (heads of 32), and engines on them that tests share.

An engine takes seconds to start, so two of each kind serve all tests of a session; `fresh` empties one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from offbeat.backends.vllm.engine import VllmEngine
from tests.scratch import scratch

VOCAB = 41
EOS = [3, 7]
CONTEXT = 48
KINDS = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen3": (Qwen3ForCausalLM, Qwen3Config)}


@cache
def built(family: str, tied: bool, seed: int = 0) -> tuple[PreTrainedModel, Path]:
    """A model and its directory, made once a session."""
    kind, config = KINDS[family]
    torch.manual_seed(seed)
    model = kind(
        config(
            vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=32, max_position_embeddings=256, tie_word_embeddings=tied,
            bos_token_id=None, pad_token_id=None, eos_token_id=EOS, initializer_range=0.25,
        )
    ).eval()  # fmt: skip
    directory = scratch("vllm")
    model.save_pretrained(directory)
    return model, directory


def weights(family: str, tied: bool, seed: int = 0) -> Path:
    return built(family, tied, seed)[1] / "model.safetensors"


class Pool:
    """Hands out two engines in turn, emptied: laws compare one with another, never three."""

    def __init__(self, make: Callable[[], VllmEngine]) -> None:
        self._make = make
        self._engines: list[VllmEngine] = []
        self._turn = count()

    def fresh(self) -> VllmEngine:
        if len(self._engines) < 2:
            self._engines.append(self._make())
            return self._engines[-1]
        engine = self._engines[next(self._turn) % 2]
        engine.abort(tuple(engine.decoded()))
        engine.step()
        for version in engine.versions:
            engine.unload(version)
        return engine


@cache
def full_weights(family: str, tied: bool) -> Pool:
    directory = built(family, tied)[1]
    return Pool(lambda: VllmEngine(directory, slots=3, context=CONTEXT))


@cache
def adapters(family: str, tied: bool, kv_tokens: int | None = None) -> Pool:
    directory = built(family, tied)[1]
    return Pool(lambda: VllmEngine(directory, slots=3, context=CONTEXT, kv_tokens=kv_tokens, lora=(2, 4)))
