"""Compiled loops over token rows: everything of a decoder layer but its matrix products, and the choice of a token.

Invariant: what a row gets depends on that row alone, bit for bit: every loop runs over one row's numbers in an order
that its own length fixes. Rows of slot -1 are padding and are skipped. Arrays are float32 and contiguous unless
stated. Knows arrays only: no models, no versions, no requests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.compiled import compiled, exp_in_place

BLOCK = 32
"""Positions of one slot whose keys and values lie together."""
Array = NDArray[Any]
NEGLIGIBLE = np.float32(-59.0)
"""exp of it is nothing beside a 1 in float32: a token so much less likely than the likeliest is never drawn."""
ONE = np.float32(1.0)


@compiled
def embed(table: Array, tokens: Array, x: Array) -> None:
    """x [N, width] = the embeddings of tokens [N]."""
    for row in range(tokens.shape[0]):
        x[row] = table[tokens[row]]


@compiled
def unit(x: Array, eps: float, out: Array) -> None:
    """Each row over the root of the sum of its squares plus eps: an RMS norm without gain and without sqrt(width)."""
    for row in range(x.shape[0]):
        source, target = x[row], out[row]
        total = np.float32(eps)
        for i in range(source.shape[0]):
            total += source[i] * source[i]
        scale = ONE / np.sqrt(total)
        for i in range(source.shape[0]):
            target[i] = source[i] * scale


@compiled
def pick_rows(x: Array, rows: Array, out: Array) -> None:
    """out [Q', width] begins with x at `rows` [Q]; the rows after them are left as they are."""
    for i in range(rows.shape[0]):
        out[i] = x[rows[i]]


@compiled
def turn(
    qkv: Array, bias: Array, gain: Array, eps: float, heads: int, cosine: Array, sine: Array, slots: Array,
    positions: Array, table: Array, keys: Array, values: Array,
) -> None:  # fmt: skip
    """Finish queries, keys and values [N, (heads + 2 kv_heads) dim] in place and store the last two.

    Adds bias [same or 0]; norms each head's query and key and multiplies by gain [heads + kv_heads, dim] (Qwen3;
    [0, 0]: neither); turns the pairs (i, i + dim / 2) by the angles cosine, sine [context, dim / 2] of the row's
    position; puts key and value where table [slots, blocks] says, in keys [blocks, kv_heads, dim, BLOCK] and values
    [blocks, kv_heads, BLOCK, dim].
    """
    kv_heads, dim = keys.shape[1], keys.shape[2]
    half = dim // 2
    for row in range(slots.shape[0]):
        if slots[row] < 0:
            continue
        x, position = qkv[row], positions[row]
        block, offset = table[slots[row], position // BLOCK], position % BLOCK
        for i in range(bias.shape[0]):
            x[i] += bias[i]
        c, s = cosine[position], sine[position]
        for head in range(heads + kv_heads):
            part = x[head * dim : (head + 1) * dim]
            if gain.shape[0]:
                total = np.float32(eps)
                for i in range(dim):
                    total += part[i] * part[i]
                scale = ONE / np.sqrt(total)
                for i in range(dim):
                    part[i] *= scale * gain[head, i]
            for i in range(half):
                low, high = part[i], part[half + i]
                part[i] = low * c[i] - high * s[i]
                part[half + i] = low * s[i] + high * c[i]
        for head in range(kv_heads):
            key, value = (heads + head) * dim, (heads + kv_heads + head) * dim
            for i in range(dim):
                keys[block, head, i, offset] = x[key + i]
            values[block, head, offset] = x[value : value + dim]


@compiled
def attend(
    qkv: Array, heads: int, slots: Array, positions: Array, table: Array, keys: Array, values: Array, out: Array
) -> None:
    """out [N, heads dim]: each row's queries (scaled, turned) over keys and values of its slot, its own included."""
    kv_heads, dim = keys.shape[1], keys.shape[2]
    group = heads // kv_heads
    room = table.shape[1] * BLOCK
    weights, power, summed = np.empty(room, np.float32), np.empty(room, np.int32), np.empty(dim, np.float32)
    scale = power.view(np.float32)
    for row in range(slots.shape[0]):
        if slots[row] < 0:
            continue
        blocks, count = table[slots[row]], positions[row] + 1
        for head in range(heads):
            query = qkv[row, head * dim : (head + 1) * dim]
            total = _weigh(query, keys, head // group, blocks, count, weights, power, scale)
            _sum_values(values, head // group, blocks, count, weights, summed)
            target = out[row, head * dim : (head + 1) * dim]
            for i in range(dim):
                target[i] = summed[i] / total


@compiled
def _weigh(
    query: Array, keys: Array, head: int, blocks: Array, count: int, weights: Array, power: Array, scale: Array
) -> np.float32:
    """exp(score - the greatest score) of the first `count` positions into `weights`; returns their sum."""
    whole = (count + BLOCK - 1) // BLOCK
    for b in range(whole):
        part, score = keys[blocks[b], head], weights[b * BLOCK : (b + 1) * BLOCK]
        for t in range(BLOCK):
            score[t] = 0
        for i in range(0, query.shape[0], 2):
            even, odd, of_even, of_odd = query[i], query[i + 1], part[i], part[i + 1]
            for t in range(BLOCK):
                score[t] += even * of_even[t] + odd * of_odd[t]
    top = weights[0]
    for t in range(1, count):
        top = max(top, weights[t])
    exp_in_place(weights, top, count, power, scale)
    total = np.float32(0)
    for t in range(count):
        total += weights[t]
    return total


@compiled
def _sum_values(values: Array, head: int, blocks: Array, count: int, weights: Array, summed: Array) -> None:
    """summed [dim] = the first `count` values, weighted."""
    for i in range(summed.shape[0]):
        summed[i] = 0
    for b in range((count + BLOCK - 1) // BLOCK):
        part, share = values[blocks[b], head], weights[b * BLOCK : (b + 1) * BLOCK]
        inside = min(BLOCK, count - b * BLOCK)
        for t in range(0, inside - 1, 2):
            first, second, of_first, of_second = share[t], share[t + 1], part[t], part[t + 1]
            for i in range(summed.shape[0]):
                summed[i] += first * of_first[i] + second * of_second[i]
        if inside % 2:
            last, of_last = share[inside - 1], part[inside - 1]
            for i in range(summed.shape[0]):
                summed[i] += last * of_last[i]


@compiled
def choose(logits: Array, level: Array, greedy: Array, tokens: Array, logprobs: Array) -> None:
    """One token a row of logits [A, vocab] into tokens [A], with its log-prob under softmax(logits) into logprobs [A].

    A greedy [A, bool] row takes the greatest logit, the lowest such token; another one the first token whose cumulated
    probability exceeds level [A, float64, in [0, 1)]. A token of logit -inf has probability 0. Rows hold at least one
    finite logit; others come out as they may.
    """
    vocab = logits.shape[1]
    weights, power = np.empty(vocab, np.float32), np.empty(vocab, np.int32)
    for row in range(logits.shape[0]):
        x = logits[row]
        best, total = _likelihoods(x, weights, power)
        chosen = best
        if not greedy[row]:
            wanted, passed = level[row] * total, 0.0
            for i in range(vocab):
                if weights[i] > 0:
                    passed += weights[i]
                    chosen = i
                    if passed > wanted:
                        break
        tokens[row] = chosen
        logprobs[row] = x[chosen] - x[best] - np.float32(np.log(total))


@compiled
def logprobs_of(logits: Array, tokens: Array, logprobs: Array) -> None:
    """Log-probs [A] of tokens [A] under softmax(logits [A, vocab]): what `choose` gives for the same row and token."""
    vocab = logits.shape[1]
    weights, power = np.empty(vocab, np.float32), np.empty(vocab, np.int32)
    for row in range(logits.shape[0]):
        x = logits[row]
        best, total = _likelihoods(x, weights, power)
        logprobs[row] = x[tokens[row]] - x[best] - np.float32(np.log(total))


@compiled
def _likelihoods(x: Array, weights: Array, power: Array) -> tuple[int, float]:
    """weights = exp(x - its greatest), 0 where negligible; returns the lowest place of the greatest and the sum."""
    best = 0
    for i in range(1, x.shape[0]):
        if x[i] > x[best]:
            best = i
    for i in range(x.shape[0]):
        weights[i] = x[i]
    exp_in_place(weights, x[best], x.shape[0], power, power.view(np.float32))
    total = 0.0
    for i in range(x.shape[0]):
        if x[i] - x[best] < NEGLIGIBLE:
            weights[i] = 0
        total += weights[i]
    return best, total
