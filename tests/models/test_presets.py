from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from offbeat.models.presets import CONTEXT, PRESETS, build_model, write_policy
from offbeat.rollout.config import read_shape


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_survives_the_disk(name: str, tmp_path: Path) -> None:
    model = build_model(PRESETS[name], seed=3).eval()
    write_policy(model, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.tensor([AutoTokenizer.from_pretrained(tmp_path)("12+3=")["input_ids"]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, loaded(ids).logits)
    assert loaded.config.model_type == "qwen3"
    assert loaded.config.vocab_size == len(AutoTokenizer.from_pretrained(tmp_path))
    assert (tmp_path / "model.safetensors").exists()
    shape = read_shape(tmp_path)
    assert shape.tied
    assert shape.max_positions == CONTEXT
    assert shape.eos_ids == {loaded.generation_config.eos_token_id}


def test_sizes_are_small_and_ordered() -> None:
    sizes = {name: build_model(preset, seed=0).num_parameters() for name, preset in PRESETS.items()}
    assert 300_000 <= sizes["nano"] <= 1_000_000
    assert sizes["nano"] < sizes["micro"] < 5_000_000


def test_a_seed_fixes_the_weights_and_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(11)
    undisturbed = torch.rand(3)
    torch.manual_seed(11)
    one, same, other = (build_model(PRESETS["nano"], seed) for seed in (5, 5, 6))
    assert torch.equal(torch.rand(3), undisturbed)
    first = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(one.state_dict()[first], same.state_dict()[first])
    assert not torch.equal(one.state_dict()[first], other.state_dict()[first])
