"""What the learner's matrix products are computed in. Parameters, activations, gradients and sums stay float32.

*Only-within invariant*: the precision holds inside the `with` and nowhere else, so the canary and every score that a
version is judged by are float32 products. Two things keep to float32 inside, too: attention, forwards and backwards
(torch computes it in small blocks, which rounding on the way makes three times as slow), and products that add nothing
up (by which some models get the angles of their positions: rounded, position 300 would be 299 or 301). Knows torch's
switch and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from offbeat.errors import SettingsError

MatmulPrecision = Literal["float32", "bfloat16"]
FLAGS = {"float32": "ieee", "bfloat16": "bf16"}
"""What torch calls them."""
PRODUCTS = frozenset({"matmul", "__matmul__", "__rmatmul__", "mm", "bmm"})


def matmuls_in_bfloat16() -> bool:
    """Whether torch here multiplies float32 matrices as bfloat16 ones where it is told to: tried out, as processors
    that could and torch that would are not always the same."""
    if _switch() is None:
        return False
    factors = torch.rand(2, 64, 64, generator=torch.Generator().manual_seed(0))
    with _products("float32"):
        exact = factors[0] @ factors[1]
    with _products("bfloat16"):
        return not torch.equal(factors[0] @ factors[1], exact)


def check_matmul_precision(precision: MatmulPrecision) -> None:
    """Raises SettingsError where bfloat16 is asked for and would do nothing."""
    if precision == "bfloat16" and not matmuls_in_bfloat16():
        why = "needs torch 2.9 or newer" if _switch() is None else "this processor does not multiply bfloat16 numbers"
        raise SettingsError(f"learner.matmul_precision = bfloat16: {why}; set float32")


@contextmanager
def matmul_precision(precision: MatmulPrecision) -> Iterator[None]:
    """Products of float32 matrices round their factors to bfloat16 (8 bits of mantissa) in here, or they do not,
    whatever holds outside."""
    if _switch() is None:
        yield
        return
    with _products(precision), _Exceptions() if precision == "bfloat16" else nullcontext():
        yield


def when_computed_again() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """For activation checkpointing, which asks this at every forward pass: what to add to that pass, and what to its
    repetition. Torch repeats a pass while it goes back, where the switch is still as it was but calls are no longer
    redirected: without this, attention would be rounded the second time only."""
    switch = _switch()
    rounds = switch is not None and switch.fp32_precision == FLAGS["bfloat16"]
    return nullcontext(), _Exceptions() if rounds else nullcontext()


@contextmanager
def _products(precision: MatmulPrecision) -> Iterator[None]:
    switch = _switch()
    before, switch.fp32_precision = switch.fp32_precision, FLAGS[precision]
    try:
        yield
    finally:
        switch.fp32_precision = before


class _Exceptions(TorchFunctionMode):
    """Computes in float32 what is not to be rounded: attention, and products over one number each."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is scaled_dot_product_attention:
            return _attention(func, *args, **named)
        if getattr(func, "__name__", "") in PRODUCTS and _adds_nothing(args[0] if args else named.get("input")):
            return _exactly(func, args, named)
        return func(*args, **named)


def _adds_nothing(factor: Any) -> bool:
    return isinstance(factor, Tensor) and factor.ndim > 1 and factor.shape[-1] == 1


def _exactly(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    with _products("float32"):
        return func(*args, **named)


def _attention(
    func: Any, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **named: Any
) -> Any:
    """As torch's attention is called, its tensors by place or by name. All four may ask for a gradient."""

    def attend(*given: Tensor | None) -> Any:
        return _exactly(func, (*given, *rest), named)

    given = (query, key, value, attn_mask)
    return _Attention.apply(attend, *given) if torch.is_grad_enabled() else attend(*given)  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    """`attend(query, key, value, attn_mask)`, exact both ways. It keeps what went in and attends once more on the way
    back: the only point at which the switch is known to be the other way for all of its gradient. Dropout would be
    drawn anew: a policy is always in evaluation mode."""

    @staticmethod
    def forward(ctx: Any, attend: Callable[..., Any], *given: Tensor | None) -> Any:
        ctx.attend = attend
        ctx.save_for_backward(*given)
        return attend(*given)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        given = [
            one if one is None else one.detach().requires_grad_(moves)
            for one, moves in zip(ctx.saved_tensors, needed, strict=True)
        ]
        moving = [one for one in given if one is not None and one.requires_grad]
        with torch.enable_grad():
            out = ctx.attend(*given)
        with _products("float32"):
            found = iter(torch.autograd.grad(out, moving, d_out))
        return (None, *(next(found) if moves else None for moves in needed))


def _switch() -> Any:
    """oneDNN's, which torch's products on a processor go through; None before torch 2.9."""
    return getattr(torch.backends.mkldnn, "matmul", None)
