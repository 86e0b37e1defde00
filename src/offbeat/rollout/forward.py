"""The forward pass over token rows of one version: running responses and whole prompts side by side.

Invariant: a row's logits depend on its own tokens, its keys and values and the weights alone, bit for bit: matrix
products run over tiles of `TILE` rows, always as many, and everything else row by row (`kernels`). So a response does
not depend on its neighbours, its slot, its engine or when it started. Formulas: the Llama, Qwen2 and Qwen3 decoders
of `transformers`, with the foldings of `weights`. Knows nothing of requests or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.compiled import add_bias, gate
from offbeat.rollout import kernels
from offbeat.rollout.cache import BlockCache
from offbeat.rollout.config import ModelShape
from offbeat.rollout.weights import VersionWeights

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

TILE = 32
"""Rows of every matrix product. A product's rounding may depend on how many rows it has, so it always has as many."""


@dataclass(frozen=True, slots=True)
class Rows:
    """N token rows of one version: `tokens`, `positions` and `slots` [N], each slot with blocks for its positions.

    Rows of one slot come in order. Logits are wanted of the rows `wanted` [Q] (None: all).
    """

    weights: VersionWeights
    tokens: Ints
    positions: Ints
    slots: Ints
    wanted: Ints | None = None

    @property
    def outputs(self) -> int:
        """How many rows of logits come out."""
        return len(self.tokens if self.wanted is None else self.wanted)


class Space:
    """Room for rows of one width: as one array and as the tiles of products. What was there before is left there."""

    def __init__(self, width: int) -> None:
        self._width, self._memory = width, np.zeros((0, width), dtype=np.float32)
        self.tiles: list[Tensor] = []

    def rows(self, count: int) -> Floats:
        """The first `count` rows [count, width], a multiple of `TILE`."""
        if count > len(self._memory):
            whole = torch.zeros(count, self._width)
            self._memory, self.tiles = whole.numpy(), list(torch.split(whole, TILE))
        return self._memory[:count]


class Forward:
    """Computes logits; holds the room for it between calls, none of which is state."""

    def __init__(self, shape: ModelShape, context: int) -> None:
        angles = np.outer(np.arange(context), np.array(shape.frequencies))
        self._shape = shape
        self._cosine, self._sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self._x, self._unit, self._last = Space(shape.width), Space(shape.width), Space(shape.width)
        self._qkv, self._heads = Space(shape.qkv_width), Space(shape.heads * shape.head_dim)
        self._both, self._hidden, self._scores = Space(2 * shape.hidden), Space(shape.hidden), Space(shape.vocab)

    def logits(self, parts: Sequence[Rows], cache: BlockCache) -> Floats:
        """Logits [Q, vocab] of the wanted rows, part after part; keys and values of all rows go into the cache.

        No two parts share a slot."""
        shape, sizes = self._shape, [len(part.tokens) for part in parts]
        spans, count = _spans(sizes)
        slots = _laid([part.slots for part in parts], spans, np.full(count, -1))
        positions = _laid([part.positions for part in parts], spans, np.zeros(count, dtype=np.int64))
        tokens = _laid([part.tokens for part in parts], spans, np.zeros(count, dtype=np.int64))
        x, unit, qkv, heads = (s.rows(count) for s in (self._x, self._unit, self._qkv, self._heads))
        both, hidden = self._both.rows(count), self._hidden.rows(count)
        for part, span in zip(parts, spans, strict=True):
            kernels.embed(part.weights.embed, tokens[span.rows], x[span.rows])
        for layer in range(shape.layers):
            own = [(part.weights.layers[layer], span) for part, span in zip(parts, spans, strict=True)]
            keys, values = cache.keys[layer], cache.values[layer]
            kernels.unit(x, shape.width * shape.rms_eps, unit)
            for w, span in own:
                _product(self._unit, w.qkv, self._qkv, span)
                kernels.turn(
                    qkv[span.rows], w.qkv_bias, w.qk_gain, shape.head_dim * shape.rms_eps, shape.heads, self._cosine,
                    self._sine, slots[span.rows], positions[span.rows], cache.table, keys, values,
                )  # fmt: skip
            kernels.attend(qkv, shape.heads, slots, positions, cache.table, keys, values, heads)
            for w, span in own:
                _add_product(self._heads, w.out, w.out_bias, self._x, span)
            kernels.unit(x, shape.width * shape.rms_eps, unit)
            for w, span in own:
                _product(self._unit, w.gate_up, self._both, span)
                if w.gate_up_bias.size:
                    add_bias(both[span.rows], w.gate_up_bias)
            gate(both, hidden)
            for w, span in own:
                _add_product(self._hidden, w.down, w.down_bias, self._x, span)
        return self._head(parts, spans, count)

    def _head(self, parts: Sequence[Rows], spans: list[Span], count: int) -> Floats:
        shape = self._shape
        last, wanted_spans = self._x.rows(count), spans
        if any(part.wanted is not None for part in parts):
            wanted_spans, wanted_count = _spans([part.outputs for part in parts])
            last, x = self._last.rows(wanted_count), last
            for part, of, to in zip(parts, spans, wanted_spans, strict=True):
                rows = np.arange(part.outputs) if part.wanted is None else part.wanted
                kernels.pick_rows(x, of.first + rows, last[to.rows])
        kernels.unit(last, shape.width * shape.rms_eps, self._unit.rows(len(last)))
        scores = self._scores.rows(len(last))
        for part, span in zip(parts, wanted_spans, strict=True):
            _product(self._unit, part.weights.head, self._scores, span)
        return np.concatenate([scores[s.first : s.first + s.count] for s in wanted_spans])


@dataclass(frozen=True, slots=True)
class Span:
    """Where `count` rows lie among padded ones: from `first`, the beginning of a tile, to the end of a tile."""

    first: int
    count: int

    @property
    def tiles(self) -> slice:
        return slice(self.first // TILE, (self.first + self.count + TILE - 1) // TILE)

    @property
    def rows(self) -> slice:
        return slice(self.first, self.tiles.stop * TILE)


def _spans(sizes: Sequence[int]) -> tuple[list[Span], int]:
    """Each part from the beginning of a tile, and how many rows that makes."""
    spans, first = list[Span](), 0
    for size in sizes:
        spans.append(Span(first, size))
        first += -(-size // TILE) * TILE
    return spans, first


def _laid(parts: Sequence[Ints], spans: Sequence[Span], rows: Ints) -> Ints:
    for part, span in zip(parts, spans, strict=True):
        rows[span.first : span.first + span.count] = part
    return rows


def _product(x: Space, matrix: Tensor, out: Space, span: Span) -> None:
    """out = x @ matrix [from, to] in this span, tile by tile."""
    for part, to in zip(x.tiles[span.tiles], out.tiles[span.tiles], strict=True):
        torch.mm(part, matrix, out=to)


def _add_product(x: Space, matrix: Tensor, bias: Floats, total: Space, span: Span) -> None:
    """total += x @ matrix [from, to] + bias in this span, tile by tile."""
    for part, to in zip(x.tiles[span.tiles], total.tiles[span.tiles], strict=True):
        to.addmm_(part, matrix)
    if bias.size:
        add_bias(total.rows(span.rows.stop)[span.rows], bias)
