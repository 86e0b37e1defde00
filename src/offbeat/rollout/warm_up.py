"""Has the engine's compiled loops at hand before anybody waits for them: a tiny model answers once in every way.

On a machine that has not compiled them yet this takes seconds, in which a lane could not say that it lives; later they
are read from the disk. *Nothing-left invariant*: what the engine runs afterwards, for any model, compiles nothing more.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

from offbeat.ports import Request, Sampling
from offbeat.rollout.config import read_shape
from offbeat.rollout.engine import Engine
from offbeat.rollout.weights import expected_shapes

CONFIG = {
    "model_type": "qwen2", "hidden_act": "silu", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 8,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True, "eos_token_id": 1,
}  # fmt: skip
WAYS = (Sampling(), Sampling(temperature=0.0), Sampling(temperature=0.7, top_k=5, top_p=0.9))


@cache
def warm_up() -> None:
    """Once a process, or in the one that it was forked from: decode a few tokens greedily, sampled and cut, with a
    shared prompt and alone; score some."""
    with TemporaryDirectory(prefix="offbeat-warm-up-") as scratch:
        model = Path(scratch)
        (model / "config.json").write_text(json.dumps(CONFIG))
        weights = model / "model.safetensors"
        shapes = expected_shapes(read_shape(model))
        save_file(
            {name: torch.linspace(-1, 1, torch.Size(of).numel()).view(of) for name, of in shapes.items()}, weights
        )
        engine = Engine(model, slots=len(WAYS) + 1, context=32)
        engine.load(0, weights)
    engine.score(0, (2, 3, 4), (5, 6))
    for number, way in enumerate((*WAYS, Sampling())):
        engine.submit(Request(number, 0, (2, 3, 4), number, 4, way))
    while engine.decoded():
        engine.step()
