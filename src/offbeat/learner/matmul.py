"""What the learner's matrix products are computed in. Parameters, activations, gradients and sums stay float32.

*Only-within invariant*: the precision holds inside the `with` and nowhere else, so the canary and every score that a
version is judged by are float32 products. Knows torch's switch and no model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

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
    before = switch.fp32_precision
    switch.fp32_precision = "bf16"
    try:
        yield
    finally:
        switch.fp32_precision = before


def _switch() -> Any:
    """oneDNN's, which torch's products on a processor go through; None before torch 2.9."""
    return getattr(torch.backends.mkldnn, "matmul", None)
