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
TILE = 16
"""Columns that a loop of fixed length takes at once."""


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
    count, dim = qk.shape[0], qk.shape[2]
    group = heads // (qk.shape[1] - heads)
    room = _room(stem, begin)
    keys, weights, power = np.empty((dim, room), np.float32), np.empty(room, np.float32), np.empty(room, np.int32)
    seen = np.empty(room, np.int64)
    first = 0
    while first < count:
        end = _lay(root, stem, begin, first, seen)
        for head in range(heads):
            kv, value = heads + head // group, (qk.shape[1] + head // group) * dim
            if head % group == 0:
                _turned(qk, kv, seen, stem[first] + end - first, keys)
            for row in range(first, end):
                sight, target = stem[row] + row - begin[row] + 1, out[row, head]
                top = _along(qk[row, head], keys, sight, ONE / np.sqrt(np.float32(dim)), weights)
                total = top * ZERO
                exp_in_place(weights, top, sight, power, power.view(np.float32))
                for t in range(sight):
                    total += weights[t]
                logs[row, head] = top + np.log(total)
                for i in range(dim):
                    target[i] = ZERO
                for t in range(sight):
                    weight, source = weights[t] / total, qkv[seen[t], value : value + dim]
                    for i in range(dim):
                        target[i] += weight * source[i]
        first = end


@compiled
def _room(stem: Array, begin: Array) -> int:
    """The most rows that one sees, up to a multiple of TILE."""
    longest = 0
    for row in range(stem.shape[0]):
        longest = max(longest, stem[row] + row - begin[row] + 1)
    return (longest + TILE - 1) // TILE * TILE


@compiled
def _lay(root: Array, stem: Array, begin: Array, first: int, seen: Array) -> int:
    """The end of the branch that begins with row `first`; seen = what its last row sees, in order."""
    end = first + 1
    while end < begin.shape[0] and begin[end] == begin[first]:
        end += 1
    for t in range(stem[first]):
        seen[t] = root[first] + t
    for t in range(end - first):
        seen[stem[first] + t] = first + t
    return end


@compiled
def _turned(x: Array, part: int, rows: Array, count: int, out: Array) -> None:
    """out [dim, room]: x [., part, dim] at the first `count` rows, one row a column; 0 up to the next tile."""
    for t in range(count):
        for i in range(out.shape[0]):
            out[i, t] = x[rows[t], part, i]
    for t in range(count, (count + TILE - 1) // TILE * TILE):
        for i in range(out.shape[0]):
            out[i, t] = ZERO


@compiled
def _along(vector: Array, columns: Array, count: int, scale: np.float32, out: Array) -> np.float32:
    """out[t] = scale * vector . column t for t < count, and something up to the next tile; returns the greatest, or
    not-a-number if any is not finite."""
    for tile in range(0, count, TILE):
        part = out[tile : tile + TILE]
        for t in range(TILE):
            part[t] = ZERO
        for i in range(0, vector.shape[0], 2):
            even, odd = vector[i] * scale, vector[i + 1] * scale
            of_even, of_odd = columns[i, tile : tile + TILE], columns[i + 1, tile : tile + TILE]
            for t in range(TILE):
                part[t] += even * of_even[t] + odd * of_odd[t]
    top, unsound = out[0], ZERO
    for t in range(count):
        top = max(top, out[t])
        unsound += out[t] * ZERO
    return np.float32(top + unsound)


@compiled
def attend_back(
    d_out: Array, qk: Array, qkv: Array, heads: int, root: Array, stem: Array, begin: Array, out: Array, logs: Array,
    d_qk: Array, d_qkv: Array,
) -> None:  # fmt: skip
    """d_qk and the values' part of d_qkv grow by what reaches them through `attend`."""
    count, dim = qk.shape[0], qk.shape[2]
    group = heads // (qk.shape[1] - heads)
    room, scale = _room(stem, begin), ONE / np.sqrt(np.float32(dim))
    keys, values = np.empty((dim, room), np.float32), np.empty((dim, room), np.float32)
    weights, pulls, power = np.empty(room, np.float32), np.empty(room, np.float32), np.empty(room, np.int32)
    seen = np.empty(room, np.int64)
    by_head = qkv.reshape(count, qkv.shape[1] // dim, dim)
    first = 0
    while first < count:
        end = _lay(root, stem, begin, first, seen)
        for head in range(heads):
            kv, value = heads + head // group, qk.shape[1] + head // group
            if head % group == 0:
                _turned(qk, kv, seen, stem[first] + end - first, keys)
                _turned(by_head, value, seen, stem[first] + end - first, values)
            for row in range(first, end):
                sight, given, query = stem[row] + row - begin[row] + 1, d_out[row, head], qk[row, head]
                _along(query, keys, sight, scale, weights)
                exp_in_place(weights, logs[row, head], sight, power, power.view(np.float32))
                _along(given, values, sight, ONE, pulls)
                mean = ZERO
                for i in range(dim):
                    mean += given[i] * out[row, head, i]
                d_query = d_qk[row, head]
                for t in range(sight):
                    weight = weights[t]
                    pull = weight * (pulls[t] - mean) * scale
                    key, d_key = qk[seen[t], kv], d_qk[seen[t], kv]
                    d_value = d_qkv[seen[t], value * dim : (value + 1) * dim]
                    for i in range(dim):
                        d_query[i] += pull * key[i]
                    for i in range(dim):
                        d_key[i] += pull * query[i]
                    for i in range(dim):
                        d_value[i] += weight * given[i]
        first = end


@compiled
def gate_back(d_out: Array, both: Array, d_both: Array) -> None:
    """d_both is set, through `compiled.gate`: d silu(z) = s (1 + z (1 - s)) with s = sigmoid(z)."""
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
