"""The policy network: a Hugging Face causal language model in float32, asked for logits at chosen positions only.

*Selected-logits invariant*: the output head sees only the positions that predict a response token, whatever the
architecture does after its head (scaling, soft-capping). Always in evaluation mode: dropout would make the target
differ from the behaviour policy at lag 0. Knows no reward, no advantage and no optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from offbeat.errors import WeightsError
from offbeat.learner.layout import MicroBatch

SHARED_PROMPT_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Rotary decoders with plain causal attention: all they know of a position is its id and the attention bias."""


class Policy:
    """A causal language model behind `response_logits`. `model` is the Hugging Face module, in float32."""

    def __init__(self, model: Any) -> None:
        self.model: nn.Module = model.float().eval()
        self.config: Any = model.config
        self.vocabulary = int(model.get_output_embeddings().weight.shape[0])
        self.shares_prompts = (
            self.config.model_type in SHARED_PROMPT_FAMILIES and getattr(self.config, "sliding_window", None) is None
        )
        self._selected: Tensor | None = None
        model.get_output_embeddings().register_forward_pre_hook(self._select)

    @classmethod
    def load(cls, model_dir: Path) -> Policy:
        """The model of a Hugging Face directory with its weights (safetensors only). Raises WeightsError."""
        return cls(
            _from_directory(
                model_dir,
                lambda: AutoModelForCausalLM.from_pretrained(
                    model_dir,
                    dtype=torch.float32,
                    attn_implementation="sdpa",
                    use_safetensors=True,
                    local_files_only=True,
                ),
            )
        )

    @classmethod
    def blank(cls, model_dir: Path) -> Policy:
        """The model of a Hugging Face directory, its weights yet to be loaded. Raises WeightsError."""
        return cls(
            _from_directory(
                model_dir,
                lambda: AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                    AutoConfig.from_pretrained(model_dir, local_files_only=True),
                    dtype=torch.float32,
                    attn_implementation="sdpa",
                ),
            )
        )

    def response_logits(self, micro_batch: MicroBatch) -> Tensor:
        """Logits [N, V] at the positions that predict the N response tokens, temperature 1."""
        inputs: dict[str, Any] = {"input_ids": micro_batch.input_ids, "use_cache": False}
        if micro_batch.attention_bias is not None:
            inputs["attention_mask"] = micro_batch.attention_bias
            inputs["position_ids"] = micro_batch.position_ids
        self._selected = micro_batch.predicting
        try:
            logits: Tensor = self.model(**inputs).logits
        finally:
            self._selected = None
        return logits.squeeze(0)

    def recompute_activations(self) -> None:
        """Keep only what enters each layer for the backward pass, which computes the rest again: less memory, about a
        third more work, the same numbers (activation checkpointing)."""
        for module in self.model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.forward = partial(checkpoint, module.forward, use_reentrant=False, preserve_rng_state=False)

    def weights(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers by Hugging Face name; a tied tensor once, under its first name."""
        seen: set[int] = set()
        weights: dict[str, Tensor] = {}
        for name, tensor in self.model.state_dict().items():
            if tensor.data_ptr() not in seen or tensor.numel() == 0:
                seen.add(tensor.data_ptr())
                weights[name] = tensor
        return weights

    def _select(self, _head: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if self._selected is None:
            return None
        hidden = arguments[0]
        return (hidden.reshape(-1, hidden.shape[-1]).index_select(0, self._selected).unsqueeze(0),)


def _from_directory(model_dir: Path, build: Callable[[], Any]) -> Any:
    if not (model_dir / "config.json").is_file():
        raise WeightsError(f"model {model_dir}: no config.json; give a Hugging Face model directory")
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return build()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise WeightsError(f"model {model_dir}: transformers cannot load it ({reason})") from error
