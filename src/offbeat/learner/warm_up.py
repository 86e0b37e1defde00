"""Has the learner's compiled loops at hand before anybody waits for them: a tiny model goes there and back once.

*Nothing-left invariant*: what a compiled pass runs afterwards, for any model, compiles nothing more. It uses no
automatic gradients, which would start threads where there is a GPU.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from offbeat.learner.batches import Sample
from offbeat.learner.layout import micro_batches
from offbeat.learner.passes import CompiledPass

SHAPE: dict[str, Any] = {
    "vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 64, "attention_bias": True,
}  # fmt: skip


@cache
@torch.no_grad()
def warm_up() -> None:
    """Once a process, or in the one it was forked from: a pass over two responses to a prompt, and its gradients."""
    with torch.random.fork_rng(devices=[]):
        compiled = CompiledPass(Qwen3ForCausalLM(Qwen3Config(**SHAPE)))
    samples = [Sample(number, (2, 3, 4), (5, 6, 7), (-1.0,) * 3, None, 1.0) for number in range(2)]
    [batch] = micro_batches(samples, 64, "tree")
    assert batch.tree is not None
    chosen, weights = batch.predicting.numpy(), tuple(parameter.detach() for parameter in compiled.parameters)
    logits = compiled.forward(batch.tree, chosen, weights)
    compiled.backward(batch.tree, chosen, weights, torch.ones_like(logits))
