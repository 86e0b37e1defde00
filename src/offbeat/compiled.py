"""How loops over arrays are compiled (numba) - once a machine, without the interpreter's lock, sums in any order -
and the loops that more than one room runs.

Not-a-number and infinity stay what they are. The order of a sum depends on the length of the loop alone, so the same
numbers give the same sum again. Knows no model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]
F = TypeVar("F", bound=Callable[..., Any])

FREEDOMS = {"contract", "reassoc", "nsz", "arcp", "afn"}
"""What the compiler may do with sums and products of a loop."""


def compiled(function: F) -> F:
    """Compile at the first call, for the rest of this machine's life where a directory for that can be written."""
    try:
        return cast(F, njit(cache=True, nogil=True, error_model="numpy", fastmath=FREEDOMS)(function))
    except RuntimeError:
        return cast(F, njit(nogil=True, error_model="numpy", fastmath=FREEDOMS)(function))


LEAST, MOST = np.float32(-86.0), np.float32(126.0)
"""Powers of two beyond are taken for these: next to nothing beside 1, yet far from the slow subnormal numbers."""
LOG2_E = np.float32(1.4426950408889634)
HALF, ONE = np.float32(0.5), np.float32(1.0)
C1, C2, C3 = np.float32(0.6931471805599453), np.float32(0.2402265069591007), np.float32(0.05550410866482158)
C4, C5 = np.float32(0.009618129107628477), np.float32(0.0013333558146428443)
C6, C7 = np.float32(0.00015403530393381609), np.float32(1.5252733804059841e-05)


@compiled
def exp_in_place(x: Array, shift: np.float32, count: int, power: Array, scale: Array) -> None:
    """x[i] = exp(x[i] - shift) for i < count, between 2^-86 and 2^126; `power` int32 and `scale`, the same memory as
    float32, hold count numbers. Relative error below 1e-6 (Taylor's series of 2^f, |f| <= 1/2)."""
    for i in range(count):
        exponent = min(max((x[i] - shift) * LOG2_E, LEAST), MOST)
        whole = np.floor(exponent + HALF)
        f = exponent - whole
        y = C6 + f * C7
        y = C5 + f * y
        y = C4 + f * y
        y = C3 + f * y
        y = C2 + f * y
        y = C1 + f * y
        x[i] = ONE + f * y
        power[i] = (np.int32(whole) + np.int32(127)) << np.int32(23)
    for i in range(count):
        x[i] *= scale[i]


@compiled
def add_bias(x: Array, bias: Array) -> None:
    """x [N, width] += bias [width]."""
    for row in range(x.shape[0]):
        target = x[row]
        for i in range(bias.shape[0]):
            target[i] += bias[i]


@compiled
def gate(both: Array, out: Array) -> None:
    """out [N, hidden] = silu(gate) * up of both [N, 2 hidden]."""
    hidden = out.shape[1]
    power = np.empty(hidden, np.int32)
    scale = power.view(np.float32)
    for row in range(both.shape[0]):
        source, target = both[row], out[row]
        for i in range(hidden):
            target[i] = -source[i]
        exp_in_place(target, np.float32(0.0), hidden, power, scale)
        for i in range(hidden):
            target[i] = source[i] / (ONE + target[i]) * source[hidden + i]
