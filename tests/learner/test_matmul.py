"""Products in bfloat16: faster, less exact, and only inside a step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from offbeat.errors import SettingsError
from offbeat.learner import matmul
from offbeat.learner.matmul import check_matmul_precision, matmul_precision, matmuls_in_bfloat16
from offbeat.learner.step import PolicyLearner
from offbeat.records import Batch
from tests.learner.conftest import save_model, settings

MakeBatch = Callable[..., Batch]
PROMPT, RESPONSE = (1, 2, 4, 9), (5, 9, 8, 11, 2)
wide = pytest.mark.skipif(not matmuls_in_bfloat16(), reason="this processor does not multiply bfloat16 numbers")


def product() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 64, generator=generator) @ torch.randn(64, 64, generator=generator)


@wide
def test_the_precision_holds_inside_and_nowhere_else() -> None:
    before = product()
    with matmul_precision("float32"):
        assert torch.equal(product(), before)
    with matmul_precision("bfloat16"):
        inside = product()
    assert 1e-3 < (inside - before).abs().max() < 0.5
    with suppress(ZeroDivisionError), matmul_precision("bfloat16"):
        raise ZeroDivisionError
    assert torch.equal(product(), before)


@wide
def test_what_holds_outside_does_not_matter() -> None:
    before = product()
    torch.set_float32_matmul_precision("medium")
    try:
        assert not torch.equal(product(), before)
        with matmul_precision("float32"):
            assert torch.equal(product(), before)
            with matmul_precision("bfloat16"):
                assert not torch.equal(product(), before)
            assert torch.equal(product(), before)
        assert not torch.equal(product(), before)
    finally:
        torch.set_float32_matmul_precision("highest")


@wide
@pytest.mark.parametrize("how", ["is causal", "a mask by place", "a mask by name, tensors too", "a mask that learns"])
def test_attention_stays_exact_forwards_and_backwards(how: str) -> None:
    def attended() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        given = [torch.randn(2, 3, 80, 32, generator=generator).requires_grad_() for _ in range(3)]
        mask = torch.randn(80, 80, generator=generator)
        if how == "is causal":
            out = scaled_dot_product_attention(*given, is_causal=True)
        elif how == "a mask by place":
            out = scaled_dot_product_attention(*given, mask)
        elif how == "a mask that learns":
            given.append(mask.requires_grad_())
            out = scaled_dot_product_attention(*given)
        else:
            named = dict(zip(("query", "key", "value"), given, strict=True))
            out = scaled_dot_product_attention(**named, attn_mask=mask, scale=0.3)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), given)]

    exact = attended()
    with matmul_precision("bfloat16"):
        inside = attended()
    assert all(torch.equal(one, other) for one, other in zip(inside, exact, strict=True))


class AnglesByProduct(nn.Module):
    """Rotary embedding as transformers has it up to 5.18: positions times frequencies as a product of matrices."""

    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        self.frequencies = of.inv_freq

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = (self.frequencies[None, :, None].float() @ position_ids[:, None, :].float()).transpose(1, 2)
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


@wide
def test_positions_are_not_rounded(model_dir: Path) -> None:
    """In bfloat16, of 256 and more only even ones exist, and the compiled pass keeps what it has once computed."""
    exact, rounded = (PolicyLearner.open(model_dir, settings(matmul_precision=p)) for p in ("float32", "bfloat16"))
    rotary = AnglesByProduct(exact.policy.model.model.rotary_emb)
    positions, anything = torch.arange(2048), torch.empty(1)
    plain = rotary(anything, positions.unsqueeze(0))
    for learner in (exact, rounded):
        assert learner.policy.compiled is not None
        learner.policy.compiled._rotary = rotary
    with matmul_precision("bfloat16"):
        assert all(torch.equal(one, other) for one, other in zip(rotary(anything, positions[None]), plain, strict=True))
        kept = rounded.policy.compiled._turns(positions.numpy())
        by_name = torch.matmul(input=positions[:, None].float(), other=torch.ones(1, 64))
    assert torch.equal(by_name[:, 0], positions.float())
    first = exact.policy.compiled._turns(positions.numpy())
    assert all(torch.equal(one, other) for one, other in zip(kept, first, strict=True))


@wide
@pytest.mark.parametrize(("activation", "in_loops"), [("silu", True), ("gelu", False)])
def test_a_step_in_bfloat16_is_near_the_one_in_float32_and_scores_are_exact(
    activation: str, in_loops: bool, sample_batch: MakeBatch, tmp_path: Path
) -> None:
    shape = {"hidden_size": 64, "intermediate_size": 96, "hidden_act": activation}
    model_dir = save_model(tmp_path / "model", "qwen3", **shape)
    exact = PolicyLearner.open(model_dir, settings(matmul_precision="float32"))
    rounded = PolicyLearner.open(model_dir, settings(matmul_precision="bfloat16"))
    assert (rounded.policy.compiled is not None) is in_loops
    assert rounded.score(PROMPT, RESPONSE) == exact.score(PROMPT, RESPONSE)
    one, other = exact.step(sample_batch()), rounded.step(sample_batch())
    assert one.skipped_updates == other.skipped_updates == 0
    assert one.gradient_norm != other.gradient_norm
    assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=0.1)
    assert rounded.score(PROMPT, RESPONSE) == pytest.approx(exact.score(PROMPT, RESPONSE), abs=0.2)


@wide
def test_activations_that_are_computed_again_are_the_same(sample_batch: MakeBatch, tmp_path: Path) -> None:
    model_dir = save_model(tmp_path / "model", "qwen3", hidden_size=64, intermediate_size=96, hidden_act="gelu")
    norms = []
    for again in (False, True):
        changes = {"matmul_precision": "bfloat16", "recompute_activations": again}
        norms.append(PolicyLearner.open(model_dir, settings(**changes)).step(sample_batch()).gradient_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_a_processor_that_does_not_round_is_told_by_its_products(
    monkeypatch: pytest.MonkeyPatch, model_dir: Path, tmp_path: Path
) -> None:
    """Also where a learner goes on or starts on another machine than the one that prepared the run."""
    PolicyLearner.open(model_dir, settings()).save(tmp_path / "saved")
    monkeypatch.setattr(matmul, "FLAGS", {"float32": "ieee", "bfloat16": "ieee"})
    assert not matmuls_in_bfloat16()
    refusal = "learner.matmul_precision = bfloat16: this processor does not multiply bfloat16 numbers; set float32"
    with pytest.raises(SettingsError, match=refusal):
        check_matmul_precision("bfloat16")
    with pytest.raises(SettingsError, match=refusal):
        PolicyLearner.open(model_dir, settings(matmul_precision="bfloat16"))
    with pytest.raises(SettingsError, match=refusal):
        PolicyLearner.restore(model_dir, tmp_path / "saved", settings(matmul_precision="bfloat16"))


def test_where_it_would_do_nothing_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_matmul_precision("float32")
    monkeypatch.setattr(matmul, "_switch", lambda: None)
    with pytest.raises(SettingsError, match=r"needs torch 2\.9 or newer; set float32"):
        check_matmul_precision("bfloat16")
    with matmul_precision("bfloat16"):
        assert torch.equal(product(), product())
