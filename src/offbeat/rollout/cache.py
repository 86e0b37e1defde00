"""Keys and values of all slots in blocks of `BLOCK` positions, so that a long response costs its own length only.

Invariant: a block belongs to one slot or to none; block 0 to none for ever (the padding of tables). `mask` is 0
where a block holds a token of its slot and `UNSEEN` elsewhere. Used blocks lie low: free ones are taken lowest
first, and `tidy` moves blocks down when holes grow. Knows nothing of versions, tokens or requests.
"""

from __future__ import annotations

import heapq

import numpy as np
import torch
from numpy.typing import NDArray

from offbeat.rollout.config import ModelShape

BLOCK = 32
UNSEEN = -1e30
Ints = NDArray[np.int64]


class BlockCache:
    """`keys` [layers, blocks, kv_heads, head_dim, BLOCK] and `values` [layers, blocks, kv_heads, BLOCK, head_dim],
    float32, are views of `store` [layers, elements].

    `table` [slots, blocks per slot] lists each slot's blocks in order, 0 where it has none; `owner` [blocks] is
    the slot a block belongs to, or -1; used blocks lie below `span`. Memory is taken from the system only as
    blocks are first written.
    """

    def __init__(self, shape: ModelShape, slots: int, context: int) -> None:
        per_slot = -(-context // BLOCK)
        blocks, kv, dim = 1 + slots * per_slot, shape.kv_heads, shape.head_dim
        half = blocks * kv * dim * BLOCK
        self.store = torch.from_numpy(np.zeros((shape.layers, 2 * half), dtype=np.float32))
        self.keys = self.store[:, :half].view(shape.layers, blocks, kv, dim, BLOCK)
        self.values = self.store[:, half:].view(shape.layers, blocks, kv, BLOCK, dim)
        head, feature = np.divmod(np.arange(kv * dim), dim)
        self._key_start = (head * dim + feature) * BLOCK
        self._value_start = half + head * BLOCK * dim + feature
        self._block_size, self._dim = kv * dim * BLOCK, dim
        self.mask = torch.full((blocks, BLOCK), UNSEEN)
        self._mask: NDArray[np.float32] = self.mask.numpy()
        self.table: Ints = np.zeros((slots, per_slot), dtype=np.int64)
        self.owned: Ints = np.zeros(slots, dtype=np.int64)
        self.owner: Ints = np.full(blocks, -1, dtype=np.int64)
        self.span = 1
        self._ordinal: Ints = np.zeros(blocks, dtype=np.int64)
        self._free = list(range(1, blocks))

    def reserve(self, slot: int, tokens: int) -> None:
        """Give the slot blocks for so many tokens in all; those it has stay."""
        for ordinal in range(int(self.owned[slot]), -(-tokens // BLOCK)):
            block = heapq.heappop(self._free)
            self.table[slot, ordinal], self.owner[block], self._ordinal[block] = block, slot, ordinal
            self.owned[slot] = ordinal + 1

    def release(self, slot: int, wipe: bool = False) -> None:
        """Take the slot's blocks back; `wipe` also clears them, for values that are not finite."""
        blocks = self.table[slot, : self.owned[slot]].copy()
        self._mask[blocks] = UNSEEN
        self.owner[blocks] = -1
        self.table[slot] = 0
        self.owned[slot] = 0
        for block in blocks.tolist():
            heapq.heappush(self._free, block)
        if wipe:
            self.keys[:, blocks] = 0.0
            self.values[:, blocks] = 0.0

    def adopt(self, slots: list[int], holders: list[int], tokens: list[int]) -> None:
        """Copy the first `tokens[i]` tokens of slot `holders[i]` into `slots[i]`, which holds none."""
        source, target = [], []
        for slot, holder, count in zip(slots, holders, tokens, strict=True):
            self.reserve(slot, count)
            source.append(self.table[holder, : self.owned[slot]])
            target.append(self.table[slot, : self.owned[slot]])
            self._see(np.full(count, slot), np.arange(count))
        self._copy(np.concatenate(source), np.concatenate(target))

    def _copy(self, source: Ints, target: Ints) -> None:
        to, of = torch.from_numpy(target), torch.from_numpy(source)
        self.keys[:, to] = self.keys[:, of]
        self.values[:, to] = self.values[:, of]

    def full(self, slots: Ints, tokens: Ints) -> NDArray[np.bool_]:
        """Which of these slots, holding so many tokens, have no room for one more."""
        room: NDArray[np.bool_] = tokens >= self.owned[slots] * BLOCK
        return room

    def place(self, slots: Ints, positions: Ints) -> torch.Tensor:
        """These positions [W] of these slots hold tokens from now on. Returns where in a layer's `store` the keys
        and then the values of each go [W, 2 kv_heads * head_dim]."""
        blocks, offsets = self._see(slots, positions)
        base = blocks * self._block_size
        keys = (base + offsets)[:, None] + self._key_start
        values = (base + offsets * self._dim)[:, None] + self._value_start
        return torch.from_numpy(np.concatenate([keys, values], axis=1))

    def _see(self, slots: Ints, positions: Ints) -> tuple[Ints, Ints]:
        ordinals, offsets = np.divmod(positions, BLOCK)
        blocks = self.table[slots, ordinals]
        self._mask[blocks, offsets] = 0.0
        return blocks, offsets

    def tidy(self) -> None:
        """Close the holes where they are many and find the new span. To be called before blocks are read."""
        used = np.flatnonzero(self.owner >= 0)
        highest = int(used[-1]) if used.size else 0
        if highest > 16 and used.size < 0.75 * highest:
            self._compact(used)
            highest = used.size
        self.span = highest + 1

    def _compact(self, used: Ints) -> None:
        """Move the highest used blocks into the lowest holes."""
        end = used.size + 1
        source = used[used >= end]
        target = np.setdiff1d(np.arange(1, end), used, assume_unique=True)
        self._copy(source, target)
        self._mask[target] = self._mask[source]
        self._mask[source] = UNSEEN
        self.owner[target], self._ordinal[target] = self.owner[source], self._ordinal[source]
        self.owner[source] = -1
        self.table[self.owner[target], self._ordinal[target]] = target
        self._free = list(range(end, len(self.owner)))
