"""Products in bfloat16: faster, less exact, and only inside a step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
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
def test_attention_stays_exact_forwards_and_backwards() -> None:
    def attended() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        given = [torch.randn(2, 3, 80, 32, generator=generator).requires_grad_() for _ in range(3)]
        out = scaled_dot_product_attention(*given, is_causal=True)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), given)]

    exact = attended()
    with matmul_precision("bfloat16"):
        inside = attended()
    assert all(torch.equal(one, other) for one, other in zip(inside, exact, strict=True))


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


def test_where_it_would_do_nothing_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_matmul_precision("float32")
    monkeypatch.setattr(matmul, "_switch", lambda: None)
    with pytest.raises(SettingsError, match=r"needs torch 2\.9 or newer; set float32"):
        check_matmul_precision("bfloat16")
    with matmul_precision("bfloat16"):
        assert torch.equal(product(), product())
