"""The state of GAC travels in the optimizer's: saved anywhere, loaded before or after attaching, it goes on exactly."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from offbeat.align import GAC
from tests.align.test_gac import OPTIMIZERS, Bench, gradients, same, sgd

CASES: list[dict[str, Any]] = [
    {"mode": "cap", "c_low": 0.1, "c_high": 0.8},
    {"mode": "orth", "c_low": 0.1, "c_high": 0.6, "reference": "applied", "on_skip": "keep", "max_skips": 2},
    {"mode": "ratio", "c_low": 0.1, "c_high": 0.9, "lags": (1, 2, 4), "history": "bfloat16", "offload": True},
    {"mode": "orth", "c_low": 0.1, "c_high": 1.0, "direction": "random", "lags": (2,)},
    {"mode": "cap", "c_low": 0.1, "c_high": 0.5, "on_skip": "keep", "lags": (1, 3)},
]


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """Numbers, strings, lists, tensors: what torch loads without running anything."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['mode']}-{len(case)}")
@pytest.mark.parametrize("attached", ["first", "afterwards"])
@pytest.mark.parametrize("at", [1, 5])
def test_interrupted_and_resumed_is_unbroken(case: dict[str, Any], attached: str, at: int) -> None:
    flow = gradients(12, common=1.2)
    unbroken = Bench(OPTIMIZERS["adamw"], **case)
    found = [unbroken.step(gradient) for gradient in flow]
    first = Bench(OPTIMIZERS["adamw"], **case)
    for gradient in flow[:at]:
        first.step(gradient)
    saved = through_a_file(first.optimizer.state_dict())
    weights = [parameter.detach().clone() for parameter in first.parameters]
    first.step(flow[0] * 9)  # what happens after saving is no part of it
    second = Bench(OPTIMIZERS["adamw"], **(case if attached == "first" else {}))
    with torch.no_grad():
        for parameter, weight in zip(second.parameters, weights, strict=True):
            parameter.copy_(weight)
    second.optimizer.load_state_dict(saved)
    if attached == "afterwards":
        second.gac = GAC(second.optimizer, **case)
    assert [second.step(gradient) for gradient in flow[at:]] == found[at:]
    assert same(second.state(), unbroken.state())
    assert second.gac.counts == unbroken.gac.counts
    assert {f.regime for f in found} & {"projected", "skipped"}


def test_by_itself_too(tmp_path: Path) -> None:
    """For checkpoints that save every stateful part by itself."""
    flow = gradients(6)
    one, other = Bench(sgd, mode="observe"), Bench(sgd, mode="observe")
    for gradient in flow[:3]:
        one.step(gradient)
    other.gac.load_state_dict(through_a_file(one.gac.state_dict()))
    assert other.step(flow[3]).cosine == one.step(flow[3]).cosine


def test_state_of_training_without_it_starts_afresh() -> None:
    flow = gradients(4)
    plain, bench = Bench(sgd), Bench(sgd, mode="observe")
    for gradient in flow[:2]:
        plain.step(gradient)
        bench.step(gradient)
    bench.optimizer.load_state_dict(plain.optimizer.state_dict())
    found = bench.step(flow[2])
    assert (found.step, found.regime, found.cosine) == (1, "invalid", None)


def test_state_with_it_does_not_disturb_training_without() -> None:
    bench, plain = Bench(OPTIMIZERS["adamw"], mode="observe"), Bench(OPTIMIZERS["adamw"])
    for gradient in gradients(3):
        bench.step(gradient)
        plain.step(gradient)
    plain.optimizer.load_state_dict(bench.optimizer.state_dict())
    torch.optim.lr_scheduler.StepLR(plain.optimizer, 1).step()
    for gradient in gradients(2, seed=4):
        bench.step(gradient)
        plain.step(gradient)
    assert "align_state" not in bench.optimizer.param_groups[0]


def test_other_settings_may_go_on_with_it() -> None:
    """Fewer lags, another history: what is there is used."""
    flow = gradients(6)
    one = Bench(sgd, mode="observe", lags=(1, 4))
    for gradient in flow[:5]:
        one.step(gradient)
    other = Bench(sgd, mode="cap", c_high=1.0, lags=(2,), history="bfloat16")
    other.gac.load_state_dict(one.gac.state_dict())
    assert other.step(flow[5]).lags[2] is not None


def test_state_of_other_parameters_is_refused_and_changes_nothing() -> None:
    bench = Bench(sgd, mode="observe")
    for gradient in gradients(2):
        bench.step(gradient)
    state = bench.gac.state_dict()
    stranger = torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1)
    with pytest.raises(ValueError, match="of 3 parameters, the optimizer has 1"):
        GAC(stranger).load_state_dict(state)
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(n)) for n in (3, 4, 5)], lr=0.1)
    gac = GAC(other)
    with pytest.raises(ValueError, match="shape"):
        gac.load_state_dict(state)
    assert gac.step == 0
