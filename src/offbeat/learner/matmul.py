"""What the learner's matrix products are computed in. Parameters, activations, gradients and sums stay float32.

*Only-within invariant*: the precision holds inside the `with` and nowhere else, so the canary and every score that a
version is judged by are float32 products. Attention keeps to float32, forwards and backwards: torch computes it in
small blocks, which rounding on the way makes three times as slow. Knows torch's switch and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from offbeat.errors import SettingsError

MatmulPrecision = Literal["float32", "bfloat16"]


def matmuls_in_bfloat16() -> bool:
    """Whether this processor and this torch multiply float32 matrices as bfloat16 ones, adding up in float32."""
    return _switch() is not None and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def check_matmul_precision(precision: MatmulPrecision) -> None:
    """Raises SettingsError where bfloat16 is asked for and would do nothing."""
    if precision == "bfloat16" and not matmuls_in_bfloat16():
        why = "needs torch 2.9 or newer" if _switch() is None else "this processor does not multiply bfloat16 numbers"
        raise SettingsError(f"learner.matmul_precision = bfloat16: {why}; set float32")


@contextmanager
def matmul_precision(precision: MatmulPrecision) -> Iterator[None]:
    """Products of float32 matrices round their factors to bfloat16 (8 bits of mantissa) in here, or they do not."""
    switch = _switch()
    if precision == "float32" or switch is None:
        yield
        return
    with _products("bf16"), _ExactAttention():
        yield


def when_computed_again() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """For activation checkpointing, which asks this at every forward pass: what to add to that pass, and what to its
    repetition, where torch has forgotten how calls were redirected."""
    switch = _switch()
    rounds = switch is not None and switch.fp32_precision == "bf16"
    return nullcontext(), _ExactAttention() if rounds else nullcontext()


@contextmanager
def _products(precision: str) -> Iterator[None]:
    switch = _switch()
    before, switch.fp32_precision = switch.fp32_precision, precision
    try:
        yield
    finally:
        switch.fp32_precision = before


class _ExactAttention(TorchFunctionMode):
    """Sends calls of torch's attention through `_Attention`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))

        attend = partial(_exactly, func, args[3:], kwargs or {})
        if not torch.is_grad_enabled():
            return attend(*args[:3])
        return _Attention.apply(attend, *args[:3])  # type: ignore[no-untyped-call]


def _exactly(attention: Any, rest: tuple[Any, ...], named: dict[str, Any], *given: Tensor) -> Any:
    with _products("ieee"):
        return attention(*given, *rest, **named)


class _Attention(torch.autograd.Function):
    """`attend(query, key, value)`, exact both ways. It keeps what went in and attends once more on the way back: the
    only point at which the switch is known to be the other way for all of its gradient."""

    @staticmethod
    def forward(ctx: Any, attend: Callable[..., Any], *given: Tensor) -> Any:
        ctx.attend = attend
        ctx.save_for_backward(*given)
        return attend(*given)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        given = [one.detach().requires_grad_(moves) for one, moves in zip(ctx.saved_tensors, needed, strict=True)]
        moving = [one for one in given if one.requires_grad]
        with torch.enable_grad():
            out = ctx.attend(*given)
        with _products("ieee"):
            found = iter(torch.autograd.grad(out, moving, d_out))
        return (None, *(next(found) if moves else None for moves in needed))


def _switch() -> Any:
    """oneDNN's, which torch's products on a processor go through; None before torch 2.9."""
    return getattr(torch.backends.mkldnn, "matmul", None)
