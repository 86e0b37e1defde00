"""The policy network: a Hugging Face causal language model in float32, all of it or an adapter trained.

It is asked for logits at chosen positions only.

Its parameters are always that module's. Trees of tokens go through compiled loops where those compute the same
(`passes`); everything else through the module itself.

*Selected-logits invariant*: the output head sees only the positions that predict a response token, whatever the
architecture does after its head (scaling, soft-capping). Always in evaluation mode: dropout would make the target
differ from the behaviour policy at lag 0. Knows no reward, no advantage and no optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from offbeat.durable import file_digest
from offbeat.errors import InvariantError, WeightsError
from offbeat.learner.batches import Sample
from offbeat.learner.layout import Layout, MicroBatch, micro_batches
from offbeat.learner.lora import adapter_weights, announced_adapter, merged_weights, with_adapter
from offbeat.learner.matmul import when_computed_again
from offbeat.learner.passes import CompiledPass, can_pass
from offbeat.learner.ranks import Ranks
from offbeat.learner.sharding import shard
from offbeat.records import Adapter
from offbeat.settings import LoraSettings

BASE = "model.safetensors"
SHARED_PROMPT_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Rotary decoders with plain causal attention: all they know of a position is its id and the attention bias."""


class Policy:
    """A causal language model behind `response_logits`. `model` is the Hugging Face module, in float32; `layout` says
    how micro-batches for it are best laid out."""

    def __init__(self, model: Any, adapter: Adapter | None = None, seed: int = 0) -> None:
        """With `adapter` the model's weights stay as they are and a fresh adapter, drawn from `seed`, is trained."""
        self.config: Any = model.config
        self.adapter = adapter
        self.model: nn.Module = (with_adapter(model, adapter, seed) if adapter else model).float().eval()
        self.vocabulary = int(model.get_output_embeddings().weight.shape[0])
        shares = (
            self.config.model_type in SHARED_PROMPT_FAMILIES and getattr(self.config, "sliding_window", None) is None
        )
        self.compiled = CompiledPass(model) if shares and can_pass(model) else None
        self.layout: Layout = "tree" if self.compiled is not None else "shared" if shares else "plain"
        self.sharded = False
        self._selected: Tensor | None = None
        self._own_hook = self._select
        model.get_output_embeddings().register_forward_pre_hook(self._own_hook)

    @classmethod
    def load(cls, model_dir: Path, adapter: Adapter | None = None, seed: int = 0) -> Policy:
        """The model of a Hugging Face directory with its weights (safetensors only). Raises WeightsError."""
        model = _from_directory(
            model_dir,
            lambda: AutoModelForCausalLM.from_pretrained(
                model_dir,
                dtype=torch.float32,
                attn_implementation="sdpa",
                use_safetensors=True,
                local_files_only=True,
            ),
        )
        return cls(model, adapter, seed)

    @classmethod
    def adapted(cls, model_dir: Path, lora: LoraSettings, seed: int) -> Policy:
        """A fresh adapter on the model of a Hugging Face directory with one weights file. Raises WeightsError."""
        base = file_digest(model_dir / BASE)
        return cls.load(model_dir, Adapter(lora.rank, lora.alpha, lora.targets, base), seed)

    @classmethod
    def for_weights(cls, model_dir: Path, weights: Path) -> Policy:
        """What a version's weights can be loaded into: they say whether they are an adapter. Raises WeightsError."""
        adapter = announced_adapter(weights)
        if adapter is None:
            return cls.blank(model_dir)
        found = file_digest(model_dir / BASE)
        if found != adapter.base:
            raise WeightsError(f"weights {weights}: an adapter of {adapter.base[:12]}, {model_dir} holds {found[:12]}")
        return cls.load(model_dir, adapter)

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

    def micro_batches(self, samples: Sequence[Sample], tokens: int) -> list[MicroBatch]:
        """Samples in micro-batches of at most `tokens` tokens. Where somebody hooked into the model's modules, what
        they hooked into is what runs."""
        hooked = self.layout == "tree" and any(
            hook is not self._own_hook
            for module in self.model.modules()
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
            for hook in hooks.values()
        )
        return micro_batches(samples, tokens, "shared" if hooked else self.layout)

    def response_logits(self, micro_batch: MicroBatch) -> Tensor:
        """Logits [N, V] at the positions that predict the N response tokens, temperature 1."""
        if micro_batch.tree is not None:
            if self.compiled is None:
                raise InvariantError("a micro-batch in tree layout came to a policy that has no compiled pass")
            return self.compiled.logits(micro_batch.tree, micro_batch.predicting)
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
        for module in self._layers():
            module.forward = partial(
                checkpoint, module.forward, use_reentrant=False, preserve_rng_state=False,
                context_fn=when_computed_again,
            )  # fmt: skip
        self.layout = "shared" if self.layout == "tree" else self.layout

    def shard(self, ranks: Ranks) -> Policy:
        """Keep this process's part of every parameter only. From now on every pass is a collective call."""
        shard(self.model, self._layers(), ranks)
        self.sharded, self.compiled = True, None
        self.layout = "shared" if self.layout == "tree" else self.layout
        return self

    def _layers(self) -> list[nn.Module]:
        return [module for module in self.model.modules() if isinstance(module, GradientCheckpointingLayer)]

    def weights(self) -> dict[str, Tensor]:
        """What a version is: the adapter's tensors by peft's names, or parameters and persistent buffers by Hugging
        Face name, a tied tensor once, under its first name. Sharded where the policy is."""
        if self.adapter:
            return adapter_weights(self.model)
        if self.sharded:
            first = {id(tensor): name for name, tensor in reversed(self.model.state_dict(keep_vars=True).items())}
            return {
                name: t.detach() for name, t in self.model.state_dict(keep_vars=True).items() if first[id(t)] == name
            }
        seen: set[int] = set()
        weights: dict[str, Tensor] = {}
        for name, tensor in self.model.state_dict().items():
            if tensor.data_ptr() not in seen or tensor.numel() == 0:
                seen.add(tensor.data_ptr())
                weights[name] = tensor
        return weights

    def whole_weights(self) -> dict[str, Tensor]:
        """As a model of its own, by Hugging Face name: an adapter is merged into what it was trained on."""
        return merged_weights(self.model) if self.adapter else self.weights()

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
