"""GAC around real optimizers: what it changes, what it never changes, and what it says."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from offbeat.align import GAC, Alignment, AlignSettings
from tests.reference import gac as oracle

torch.set_num_threads(1)

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, fused=True),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, foreach=True),
    "adam-amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, lr_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


class Bench:
    """Parameters whose gradients a test hands in, and an optimizer."""

    def __init__(
        self, make: Callable[[Any], torch.optim.Optimizer], *, dtype: torch.dtype = torch.float32, **chosen: Any
    ) -> None:
        torch.manual_seed(5)
        self.parameters = [nn.Parameter(torch.randn(shape).to(dtype)) for shape in ((4, 3), (3,), ())]
        self.optimizer = make(self.parameters)
        self.gac = GAC(self.optimizer, **chosen) if chosen else None

    def step(self, gradient: Tensor) -> Alignment | None:
        """`gradient` [16], all parameters one after the other."""
        parts = gradient.split([p.numel() for p in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad = part.view(parameter.shape).to(parameter.dtype).clone()
        self.optimizer.step()
        return self.gac.last if self.gac else None

    def flat(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.parameters]).clone()

    def state(self) -> list[Tensor]:
        entries = [self.optimizer.state.get(p, {}) for p in self.parameters]
        tensors = [entry[key] for entry in entries for key in sorted(entry) if isinstance(entry[key], Tensor)]
        return [tensor.clone() for tensor in (*tensors, *self.parameters)]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def gradients(count: int, seed: int = 0, common: float = 1.0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """A common direction and noise: cosines around common^2 / (common^2 + 1)."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(16, generator=generator)
    return [(common * shared + torch.randn(16, generator=generator)).to(dtype) for _ in range(count)]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(["orth", "cap", "ratio", "ramp"]),
    reference=st.sampled_from(["raw", "applied"]),
    on_skip=st.sampled_from(["update", "keep"]),
    max_skips=st.integers(0, 2),
    lags=st.sampled_from([(), (1,), (1, 2), (3,)]),
)
def test_the_optimizer_gets_what_the_oracle_says(
    seed: int, mode: str, reference: str, on_skip: str, max_skips: int, lags: tuple[int, ...]
) -> None:
    given_gradients = gradients(9, seed, dtype=torch.float64)
    chosen = {"c_low": 0.2, "c_high": 0.7, "reference": reference, "on_skip": on_skip, "max_skips": max_skips}
    bench = Bench(sgd, dtype=torch.float64, mode=mode, lags=lags, **chosen)
    expected = oracle.controlled([g.tolist() for g in given_gradients], mode, **chosen)
    for number, (gradient, out) in enumerate(zip(given_gradients, expected, strict=True)):
        before = bench.flat()
        found = bench.step(gradient)
        assert found is not None
        assert (found.regime == "skipped") == (out is None)
        taken = (before - bench.flat()).tolist()
        assert taken == pytest.approx(out or [0.0] * 16, abs=1e-12)
        if out is not None:
            assert found.kept * found.norm == pytest.approx(oracle.norm(out), rel=1e-9)
        for lag in lags:
            back = given_gradients[number - lag].tolist() if number >= lag else None
            cosine = None if back is None else pytest.approx(oracle.cosine(gradient.tolist(), back), abs=1e-12)
            assert found.lags[lag] == cosine


@pytest.mark.parametrize("mode", ["orth", "cap", "ratio", "ramp"])
def test_what_is_said_of_the_controlled_gradient_is_true_of_it(mode: str) -> None:
    bench = Bench(sgd, dtype=torch.float64, mode=mode, c_low=0.2, c_high=1.0)
    first, second = gradients(2, seed=3, dtype=torch.float64)
    bench.step(first)
    before = bench.flat()
    found = bench.step(second)
    assert found is not None
    assert found.regime == "projected"
    taken = (before - bench.flat()).tolist()
    assert found.cosine == pytest.approx(oracle.cosine(second.tolist(), first.tolist()))
    assert found.controlled == pytest.approx(oracle.cosine(taken, first.tolist()), abs=1e-9)
    assert oracle.dot(taken, second.tolist()) > 0
    if mode == "orth":
        assert oracle.dot(taken, first.tolist()) == pytest.approx(0, abs=1e-9)
        assert oracle.norm(taken) == pytest.approx(math.sqrt(1 - found.cosine**2) * found.norm)
    if mode == "cap":
        assert oracle.cosine(taken, first.tolist()) == pytest.approx(0.2, abs=1e-6)


def test_cap_is_exact_in_float32_at_a_million_parameters() -> None:
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.zeros(1_000_000))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    gac = GAC(optimizer, mode="cap", c_low=0.2, c_high=1.0)
    first = torch.randn(1_000_000) * 1e-3
    for gradient in (first, 0.7 * first + 0.7e-3 * torch.randn(1_000_000)):
        before = parameter.detach().clone()
        parameter.grad = gradient.clone()
        optimizer.step()
    taken = (before - parameter.detach()).double()
    assert gac.last is not None
    assert gac.last.regime == "projected"
    cosine = (taken @ first.double() / (taken.norm() * first.double().norm())).item()
    assert cosine == pytest.approx(0.2, abs=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["off", "observe", "cap"])
def test_where_nothing_is_to_be_done_every_bit_stays(name: str, mode: str) -> None:
    """off and observe; cap with gradients that are not aligned."""
    flow = gradients(6, common=0.0 if mode == "cap" else 2.0)
    if mode == "cap":
        flow = [sign * g for g in flow[:1] for sign in (1, -1, 1, -1)]
    plain, watched = Bench(OPTIMIZERS[name]), Bench(OPTIMIZERS[name], mode=mode, c_low=0.1, c_high=0.2, lags=(2,))
    for gradient in flow:
        plain.step(gradient)
        watched.step(gradient)
    assert same(plain.state(), watched.state())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_is_no_step(name: str) -> None:
    bench = Bench(OPTIMIZERS[name], mode="cap", c_low=0.1, c_high=0.2)
    gradient = gradients(1)[0]
    bench.step(gradient)
    before = bench.state()
    found = bench.step(gradient)
    assert found is not None
    assert (found.regime, found.kept, found.controlled, found.update) == ("skipped", 0, None, None)
    assert found.cosine == pytest.approx(1)
    assert same(before, bench.state())
    assert torch.equal(bench.parameters[0].grad.reshape(-1), gradient[:12])  # its gradients are still there


def test_first_missing_zero_and_broken_gradients_are_invalid_and_leave_a_hole() -> None:
    good = gradients(8)
    bench = Bench(sgd, mode="cap", c_low=0.1, c_high=1.0, lags=(1, 2))
    flow = [good[0], good[1], torch.full((16,), math.nan), good[2], good[3], torch.zeros(16), good[4], good[5]]
    found = [bench.step(gradient) for gradient in flow]
    assert [f.cosine is None for f in found] == [True, False, True, True, False, True, True, False]
    assert [f.regime == "invalid" for f in found] == [True, False, True, True, False, True, True, False]
    assert [f.lags[2] is None for f in found] == [True, True, True, False, True, True, False, True]
    bench.gac.missed()
    after = bench.step(good[6])
    assert (after.regime, after.cosine, after.lags[1], after.update) == ("invalid", None, None, None)
    assert bench.gac.counts["invalid"] == 7
    assert bench.step(good[7]).cosine is not None


def test_a_broken_gradient_reaches_the_optimizer_untouched() -> None:
    """What to do about it is somebody else's decision (a gradient scaler's, a guard's)."""
    bench = Bench(sgd, mode="orth", c_low=0.1, c_high=0.2, max_norm=1.0)
    bench.step(gradients(1)[0])
    bench.step(torch.full((16,), math.inf))
    assert bench.flat().isinf().all()


def test_the_watchdog_ends_a_lock() -> None:
    """Gradients that never turn: raw reference, so the cosine stays 1 and every step would be skipped for ever."""
    flow = gradients(1) * 12
    locked = Bench(sgd, mode="ratio", c_low=0.1, c_high=0.5, max_skips=0)
    freed = Bench(sgd, mode="ratio", c_low=0.1, c_high=0.5, max_skips=3)
    for gradient in flow:
        locked.step(gradient)
        freed.step(gradient)
    assert (locked.gac.skips, locked.gac.longest_skips, locked.gac.counts["skipped"]) == (11, 11, 11)
    assert (freed.gac.longest_skips, freed.gac.counts["released"], freed.gac.counts["skipped"]) == (3, 2, 9)


def test_three_cosines() -> None:
    """Adam's memory keeps consecutive updates aligned where gradients are not: one cosine does not tell another."""
    bench = Bench(OPTIMIZERS["adamw"], mode="cap", c_low=0.05, c_high=1.0)
    found = [bench.step(gradient) for gradient in gradients(30, common=0.3)][5:]
    assert sum(f.update for f in found) / 25 > 0.7
    assert sum(f.cosine for f in found) / 25 < 0.4
    assert all(f.controlled <= 0.05 + 1e-6 for f in found)


def test_the_update_cosine_is_that_of_the_parameters() -> None:
    bench = Bench(OPTIMIZERS["sgd"], mode="observe")
    places = [bench.flat()]
    for gradient in gradients(4):
        found = bench.step(gradient)
        places.append(bench.flat())
        if len(places) > 2:
            now, then = (places[-1] - places[-2]).tolist(), (places[-2] - places[-3]).tolist()
            assert found.update == pytest.approx(oracle.cosine(now, then), abs=1e-5)
    assert Bench(sgd, mode="observe", update_cosine=False).step(gradients(1)[0]).update is None


@pytest.mark.parametrize("clip", ["after", "before"])
@pytest.mark.parametrize("norm", [0.5, 1e9])
def test_clipping_before_or_after_control(clip: str, norm: float) -> None:
    bench = Bench(sgd, dtype=torch.float64, mode="orth", c_low=0.1, c_high=1.0, max_norm=norm, clip=clip)
    first, second = gradients(2, seed=3, dtype=torch.float64)
    bench.step(first)
    before = bench.flat()
    found = bench.step(second)
    taken = (before - bench.flat()).norm().item()
    whole, share = second.norm().item(), found.kept
    assert share < 0.9
    bounded = min(norm, whole * share) if clip == "after" else min(norm, whole) * share
    assert taken == pytest.approx(bounded, rel=1e-5)


def test_control_by_hand_lets_the_caller_clip_what_is_left() -> None:
    """The same as max_norm with clip = after, with torch's own clipping."""
    by_hand = Bench(sgd, mode="cap", c_low=0.1, c_high=1.0)
    by_itself = Bench(sgd, mode="cap", c_low=0.1, c_high=1.0, max_norm=1.0)
    for gradient in gradients(5):
        by_itself.step(gradient)
        parts = gradient.split([p.numel() for p in by_hand.parameters])
        for parameter, part in zip(by_hand.parameters, parts, strict=True):
            parameter.grad = part.view(parameter.shape).clone()
        by_hand.gac.control()
        with pytest.raises(RuntimeError, match="controlled already"):
            by_hand.gac.control()
        nn.utils.clip_grad_norm_(by_hand.parameters, 1.0)
        by_hand.optimizer.step()
    torch.testing.assert_close(by_hand.flat(), by_itself.flat())


def test_rescale_keeps_the_norm() -> None:
    bench = Bench(sgd, dtype=torch.float64, mode="orth", c_low=0.1, c_high=1.0, rescale=True)
    first, second = gradients(2, seed=3, dtype=torch.float64)
    bench.step(first)
    before = bench.flat()
    assert bench.step(second).kept == 1
    taken = before - bench.flat()
    assert taken.norm().item() == pytest.approx(second.norm().item())
    assert (taken @ first).item() == pytest.approx(0, abs=1e-9)


def test_controls_shrink_as_much_without_the_direction() -> None:
    first, second = gradients(2, seed=3, dtype=torch.float64)
    taken = {}
    for direction in ("previous", "none", "random"):
        bench = Bench(sgd, dtype=torch.float64, mode="orth", c_low=0.1, c_high=1.0, direction=direction)
        bench.step(first)
        before = bench.flat()
        found = bench.step(second)
        taken[direction] = (before - bench.flat()).tolist()
        assert found.controlled == pytest.approx(oracle.cosine(taken[direction], first.tolist()), abs=1e-9)
    norms = [oracle.norm(vector) for vector in taken.values()]
    assert norms == pytest.approx([norms[0]] * 3)
    assert oracle.cosine(taken["none"], second.tolist()) == pytest.approx(1)
    angle = oracle.cosine(taken["previous"], second.tolist())
    assert oracle.cosine(taken["random"], second.tolist()) == pytest.approx(angle)
    assert oracle.cosine(taken["random"], first.tolist()) > 0.1


def test_micro_batches_are_one_step() -> None:
    torch.manual_seed(1)
    x, y = torch.randn(32, 5), torch.randn(32, 1)
    made = []
    for pieces in (1, 4):
        torch.manual_seed(2)
        model = nn.Linear(5, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        gac = GAC(optimizer, mode="cap", c_low=0.1, c_high=0.95)
        cosines = []
        for _ in range(4):
            optimizer.zero_grad()
            for xs, ys in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
                (((model(xs) - ys) ** 2).mean() / pieces).backward()
            optimizer.step()
            cosines.append(gac.last.cosine or 0.0)
        made.append((cosines, model.weight.detach().clone()))
    assert made[0][0] == pytest.approx(made[1][0], abs=1e-5)
    torch.testing.assert_close(made[0][1], made[1][1])


def test_groups_make_one_vector_and_one_of_them_can_be_left_out() -> None:
    first, second = gradients(2, seed=3)

    def two_groups(left_out: bool) -> Callable[[Any], torch.optim.Optimizer]:
        flag = {"align": False} if left_out else {}
        return lambda p: torch.optim.SGD([{"params": p[:1], "lr": 0.5}, {"params": p[1:], **flag}], lr=1.0)

    one = Bench(sgd, mode="orth", c_low=0.1, c_high=1.0)
    two = Bench(two_groups(False), mode="orth", c_low=0.1, c_high=1.0)
    partly = Bench(two_groups(True), mode="orth", c_low=0.0, c_high=0.01)
    for gradient in (first, second):
        before = partly.flat()
        found = [bench.step(gradient) for bench in (one, two, partly)]
    assert found[0].cosine == pytest.approx(found[1].cosine)
    assert found[2].cosine == pytest.approx(oracle.cosine(first[:12].tolist(), second[:12].tolist()), abs=1e-6)
    assert found[2].regime == "skipped"
    torch.testing.assert_close((before - partly.flat())[12:], second[12:])
    assert torch.equal((before - partly.flat())[:12], torch.zeros(12))


def test_a_parameter_without_a_gradient_counts_as_zeros() -> None:
    bench = Bench(sgd, mode="observe")
    first, second = gradients(2)
    bench.step(first)
    bench.parameters[0].grad = None
    for parameter, part in zip(bench.parameters[1:], second[12:].split([3, 1]), strict=True):
        parameter.grad = part.view(parameter.shape).clone()
    bench.optimizer.step()
    padded = [0.0] * 12 + second[12:].tolist()
    assert bench.gac.last.cosine == pytest.approx(oracle.cosine(padded, first.tolist()), abs=1e-6)
    third = gradients(1, seed=8)[0]
    assert bench.step(third).cosine == pytest.approx(oracle.cosine(padded, third.tolist()), abs=1e-6)


@pytest.mark.parametrize("history", ["float32", "bfloat16"])
@pytest.mark.parametrize("offload", [False, True])
def test_bfloat16_gradients_and_histories(history: str, offload: bool) -> None:
    exact = Bench(sgd, mode="cap", c_low=0.2, c_high=1.0)
    rough = Bench(sgd, dtype=torch.bfloat16, mode="cap", c_low=0.2, c_high=1.0, history=history, offload=offload)
    for gradient in gradients(6):
        rounded = gradient.bfloat16().float()
        a, b = exact.step(rounded), rough.step(rounded)
        assert b.regime == a.regime
        assert b.cosine == (None if a.cosine is None else pytest.approx(a.cosine, abs=5e-3))
        assert b.norm == pytest.approx(a.norm, rel=1e-6)
    kept = rough.gac.state_dict()["gradients"][0]["tensors"]
    assert {tensor.dtype for tensor in kept} == {torch.bfloat16 if history == "bfloat16" else torch.float32}


def test_the_reference_does_not_follow_later_changes() -> None:
    """Gradients zeroed in place, accumulated into, clipped: what is remembered is a copy."""
    bench = Bench(sgd, mode="observe")
    first, second = gradients(2)
    bench.step(first)
    for parameter in bench.parameters:
        parameter.grad.zero_()
    assert bench.step(second).cosine == pytest.approx(oracle.cosine(first.tolist(), second.tolist()), abs=1e-6)


def test_a_closure_and_a_sparse_gradient_are_refused() -> None:
    bench = Bench(sgd, mode="cap")
    with pytest.raises(ValueError, match=r"step\(closure\)"):
        bench.optimizer.step(lambda: torch.zeros(()))
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    GAC(optimizer)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse"):
        optimizer.step()


def test_detached_it_is_gone() -> None:
    plain, bench = Bench(OPTIMIZERS["adamw"]), Bench(OPTIMIZERS["adamw"], mode="orth", c_low=0.0, c_high=0.1)
    bench.gac.detach()
    for gradient in gradients(3):
        plain.step(gradient)
        bench.step(gradient)
    assert same(plain.state(), bench.state())
    assert "align_state" not in bench.optimizer.state_dict()["param_groups"][0]


def test_metrics_hold_what_is_valid() -> None:
    bench = Bench(sgd, mode="cap", lags=(1,))
    first = bench.step(gradients(1)[0]).metrics()
    assert first == {
        "align/kept": 1.0, "align/invalid": 1.0, "align/projected": 0.0, "align/skipped": 0.0, "align/released": 0.0
    }  # fmt: skip
    assert {"align/cosine", "align/update", "align/lag_1"} <= set(bench.step(gradients(1, seed=2)[0]).metrics())


def test_settings_by_object_or_by_name() -> None:
    chosen = AlignSettings(mode="orth", c_low=0.3)
    bench = Bench(sgd)
    assert GAC(bench.optimizer, chosen, c_high=0.9).settings == AlignSettings(mode="orth", c_low=0.3, c_high=0.9)
    with pytest.raises(TypeError):
        GAC(bench.optimizer, threshold=0.1)
    assert copy.copy(chosen) == chosen
