"""Small policies built here, for machines with no model at hand: a Qwen3 model and a character tokenizer.

Invariant: what is written is an ordinary Hugging Face directory, loadable by `AutoTokenizer` and
`AutoModelForCausalLM`, and a seed fixes its weights. Knows no task and no training.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import decoders, models, processors
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

PAD, BOS, EOS, UNKNOWN = "⟨pad⟩", "⟨bos⟩", "⟨eos⟩", "⟨unk⟩"
"""Special tokens, spelled outside ASCII so that no ordinary text can contain one."""
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
CONTEXT = 4096
"""Positions the presets are declared for; rotary positions cost no weights."""


@dataclass(frozen=True)
class Preset:
    """Sizes of a model, in features, layers and heads."""

    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int


PRESETS = {
    "nano": Preset(width=128, hidden=384, layers=3, heads=4, kv_heads=4),
    "micro": Preset(width=192, hidden=576, layers=5, heads=6, kv_heads=6),
}


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each printable ASCII character and the newline; any other character becomes UNKNOWN."""
    vocabulary = {token: index for index, token in enumerate([PAD, BOS, EOS, UNKNOWN, *CHARACTERS])}
    backend = BackendTokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN, fuse_unk=False))
    backend.decoder = decoders.Fuse()
    backend.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )


def build_model(preset: Preset, seed: int) -> Qwen3ForCausalLM:
    """A freshly initialised float32 model; the global random state of torch is left as it was."""
    tokenizer = character_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=preset.width,
        intermediate_size=preset.hidden,
        num_hidden_layers=preset.layers,
        num_attention_heads=preset.heads,
        num_key_value_heads=preset.kv_heads,
        head_dim=preset.width // preset.heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        **_special_ids(tokenizer),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True, **_special_ids(tokenizer)
    )
    return model


def write_policy(model: Qwen3ForCausalLM, directory: Path) -> None:
    """Write model and character tokenizer as a Hugging Face directory (safetensors)."""
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model.save_pretrained(directory)
    finally:
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    character_tokenizer().save_pretrained(directory)


def _special_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
