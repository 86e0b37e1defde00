"""Compiled loops of a training pass over token rows: all of a decoder layer but its matrix products, and backwards.

Backward kernels are the derivatives of the forward ones above them and add to what they are given. A token row sees
rows root .. root + stem - 1 (its prompt) and begin .. itself (its response, or its prompt so far). Arrays are float32,
contiguous, [N] rows first, unless stated. Invariant: the same arrays give the same numbers, bit for bit. Knows arrays
only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.compiled import compiled, exp_in_place

Array = NDArray[Any]
ONE, ZERO = np.float32(1.0), np.float32(0.0)


@compiled
def norm(x: Array, gain: Array, eps: float, out: Array, scales: Array) -> None:
    """out = x * scale * gain with scale = 1 / sqrt(mean(x^2) + eps) of each row, kept in scales [N]."""
    width = x.shape[1]
    for row in range(x.shape[0]):
        total = ZERO
        for i in range(width):
            total += x[row, i] * x[row, i]
        scale = ONE / np.sqrt(total / np.float32(width) + np.float32(eps))
        scales[row] = scale
        for i in range(width):
            out[row, i] = x[row, i] * scale * gain[i]


@compiled
def norm_back(d_out: Array, x: Array, gain: Array, scales: Array, d_x: Array, d_gain: Array) -> None:
    """d_x and d_gain [width] grow by what reaches them through `norm`."""
    width = x.shape[1]
    for row in range(x.shape[0]):
        scale, along = scales[row], ZERO
        for i in range(width):
            along += d_out[row, i] * gain[i] * x[row, i]
        share = along * scale * scale / np.float32(width)
        for i in range(width):
            d_gain[i] += d_out[row, i] * x[row, i] * scale
            d_x[row, i] += scale * (d_out[row, i] * gain[i] - share * x[row, i])


@compiled
def turn(qkv: Array, gains: Array, eps: float, cosine: Array, sine: Array, qk: Array, scales: Array) -> None:
    """Queries and keys ready to meet: qk [N, parts, dim] from qkv [N, (parts + values) dim].

    Normed with gains [parts, dim] and their scales [N, parts] kept (no norm where gains is [0, 0]), then the pairs
    (i, i + dim / 2) turned by cosine and sine [N, dim / 2].
    """
    parts, dim = qk.shape[1], qk.shape[2]
    half = dim // 2
    for row in range(qkv.shape[0]):
        for part in range(parts):
            first, scale = part * dim, ONE
            if gains.shape[0]:
                total = ZERO
                for i in range(dim):
                    total += qkv[row, first + i] * qkv[row, first + i]
                scale = ONE / np.sqrt(total / np.float32(dim) + np.float32(eps))
                scales[row, part] = scale
            for i in range(half):
                low, high = qkv[row, first + i], qkv[row, first + half + i]
                if gains.shape[0]:
                    low, high = low * scale * gains[part, i], high * scale * gains[part, half + i]
                qk[row, part, i] = low * cosine[row, i] - high * sine[row, i]
                qk[row, part, half + i] = high * cosine[row, i] + low * sine[row, i]


@compiled
def turn_back(
    d_qk: Array, qkv: Array, gains: Array, cosine: Array, sine: Array, scales: Array, d_qkv: Array, d_gains: Array
) -> None:
    """The queries' and keys' part of d_qkv is set, d_gains grows; d_qk is turned back on the way."""
    parts, dim = d_qk.shape[1], d_qk.shape[2]
    half = dim // 2
    for row in range(qkv.shape[0]):
        for part in range(parts):
            first, scale = part * dim, ONE
            for i in range(half):
                low, high = d_qk[row, part, i], d_qk[row, part, half + i]
                d_qk[row, part, i] = low * cosine[row, i] + high * sine[row, i]
                d_qk[row, part, half + i] = high * cosine[row, i] - low * sine[row, i]
            if not gains.shape[0]:
                for i in range(dim):
                    d_qkv[row, first + i] = d_qk[row, part, i]
                continue
            scale, along = scales[row, part], ZERO
            for i in range(dim):
                along += d_qk[row, part, i] * gains[part, i] * qkv[row, first + i]
            share = along * scale * scale / np.float32(dim)
            for i in range(dim):
                d_gains[part, i] += d_qk[row, part, i] * qkv[row, first + i] * scale
                d_qkv[row, first + i] = scale * (d_qk[row, part, i] * gains[part, i] - share * qkv[row, first + i])


@compiled
def attend(qk: Array, qkv: Array, heads: int, root: Array, stem: Array, begin: Array, out: Array, logs: Array) -> None:
    """out [N, heads, dim]: each query over what its row sees; logs [N, heads] = log of the sum of exponentials."""
    dim = qk.shape[2]
    group = heads // (qk.shape[1] - heads)
    longest = 0
    for row in range(qk.shape[0]):
        longest = max(longest, stem[row] + row - begin[row] + 1)
    weights, power = np.empty(longest, np.float32), np.empty(longest, np.int32)
    for row in range(qk.shape[0]):
        count = stem[row] + row - begin[row] + 1
        for head in range(heads):
            kv, value = heads + head // group, (qk.shape[1] + head // group) * dim
            top = _scores(qk, row, head, kv, root[row], stem[row], begin[row], count, weights)
            total = top * ZERO
            exp_in_place(weights, top, count, power, power.view(np.float32))
            for t in range(count):
                total += weights[t]
            logs[row, head] = top + np.log(total)
            for i in range(dim):
                out[row, head, i] = ZERO
            for t in range(count):
                seen = root[row] + t if t < stem[row] else begin[row] + t - stem[row]
                weight = weights[t] / total
                for i in range(dim):
                    out[row, head, i] += weight * qkv[seen, value + i]


@compiled
def _scores(
    qk: Array, row: int, head: int, kv: int, root: int, stem: int, begin: int, count: int, scores: Array
) -> np.float32:
    """scores[t] = query . key / sqrt(dim) of the t-th row seen; returns the greatest, or not-a-number if
    any is not finite."""
    dim = qk.shape[2]
    scale, top, unsound = ONE / np.sqrt(np.float32(dim)), np.float32(-np.inf), ZERO
    for t in range(count):
        seen = root + t if t < stem else begin + t - stem
        score = ZERO
        for i in range(dim):
            score += qk[row, head, i] * qk[seen, kv, i]
        scores[t] = score * scale
        top = max(top, scores[t])
        unsound += scores[t] * ZERO
    return top + unsound


@compiled
def attend_back(
    d_out: Array, qk: Array, qkv: Array, heads: int, root: Array, stem: Array, begin: Array, out: Array, logs: Array,
    d_qk: Array, d_qkv: Array,
) -> None:  # fmt: skip
    """d_qk and the values' part of d_qkv grow by what reaches them through `attend`."""
    dim = qk.shape[2]
    group = heads // (qk.shape[1] - heads)
    longest = 0
    for row in range(qk.shape[0]):
        longest = max(longest, stem[row] + row - begin[row] + 1)
    weights, power = np.empty(longest, np.float32), np.empty(longest, np.int32)
    scale = ONE / np.sqrt(np.float32(dim))
    for row in range(qk.shape[0]):
        count = stem[row] + row - begin[row] + 1
        for head in range(heads):
            kv, value = heads + head // group, (qk.shape[1] + head // group) * dim
            _scores(qk, row, head, kv, root[row], stem[row], begin[row], count, weights)
            exp_in_place(weights, logs[row, head], count, power, power.view(np.float32))
            mean = ZERO
            for i in range(dim):
                mean += d_out[row, head, i] * out[row, head, i]
            for t in range(count):
                seen = root[row] + t if t < stem[row] else begin[row] + t - stem[row]
                weight, along = weights[t], ZERO
                for i in range(dim):
                    along += d_out[row, head, i] * qkv[seen, value + i]
                    d_qkv[seen, value + i] += weight * d_out[row, head, i]
                pull = weight * (along - mean) * scale
                for i in range(dim):
                    d_qk[row, head, i] += pull * qk[seen, kv, i]
                    d_qk[seen, kv, i] += pull * qk[row, head, i]


@compiled
def gate(both: Array, out: Array) -> None:
    """out [N, hidden] = silu(gate) * up of both [N, 2 hidden]."""
    hidden = out.shape[1]
    power = np.empty(hidden, np.int32)
    for row in range(both.shape[0]):
        source, target = both[row], out[row]
        for i in range(hidden):
            target[i] = -source[i]
        exp_in_place(target, ZERO, hidden, power, power.view(np.float32))
        for i in range(hidden):
            target[i] = source[i] / (ONE + target[i]) * source[hidden + i]


@compiled
def gate_back(d_out: Array, both: Array, d_both: Array) -> None:
    """d_both is set: d silu(z) = s (1 + z (1 - s)) with s = sigmoid(z)."""
    hidden = d_out.shape[1]
    power = np.empty(hidden, np.int32)
    for row in range(both.shape[0]):
        source, given, target = both[row], d_out[row], d_both[row]
        for i in range(hidden):
            target[i] = -source[i]
        exp_in_place(target, ZERO, hidden, power, power.view(np.float32))
        for i in range(hidden):
            open_share = ONE / (ONE + target[i])
            z = source[i]
            target[hidden + i] = given[i] * z * open_share
            target[i] = given[i] * source[hidden + i] * open_share * (ONE + z * (ONE - open_share))


@compiled
def add_bias(x: Array, bias: Array) -> None:
    """x [N, width] += bias [width]."""
    for row in range(x.shape[0]):
        for i in range(bias.shape[0]):
            x[row, i] += bias[i]


@compiled
def gather_rows(table: Array, rows: Array, out: Array) -> None:
    """out [Q, width] = table at `rows` [Q]."""
    for i in range(rows.shape[0]):
        for j in range(table.shape[1]):
            out[i, j] = table[rows[i], j]


@compiled
def scatter_rows(d_out: Array, rows: Array, d_table: Array) -> None:
    """d_table at `rows` [Q], any of them more than once, grows by d_out [Q, width]."""
    for i in range(rows.shape[0]):
        for j in range(d_table.shape[1]):
            d_table[rows[i], j] += d_out[i, j]
