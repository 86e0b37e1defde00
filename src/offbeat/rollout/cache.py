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


def blocks_for(tokens: int) -> int:
    """How many blocks hold so many tokens."""
    return -(-tokens // BLOCK)


class BlockCache:
    """`keys` [layers, blocks, kv_heads, head_dim, BLOCK] and `values` [layers, blocks, kv_heads, BLOCK, head_dim],
    float32, are views of `store` [layers, elements].

    `table` [slots, blocks per slot] lists each slot's blocks in order, 0 where it has none; `owner` [blocks] is
    the slot a block belongs to, or -1; used blocks lie below `span`. Memory is taken from the system only as
    blocks are first written.
    """

    def __init__(self, shape: ModelShape, slots: int, context: int, tokens: int | None = None) -> None:
        """Room for `context` tokens in every slot, or for `tokens` in all (rounded up to blocks) where that is less."""
        per_slot = blocks_for(context)
        most = slots * per_slot if tokens is None else min(slots * per_slot, blocks_for(tokens))
        blocks, kv, dim = 1 + most, shape.kv_heads, shape.head_dim
        self.bounded = most < slots * per_slot
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
        for ordinal in range(int(self.owned[slot]), blocks_for(tokens)):
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

    @property
    def free(self) -> int:
        """Blocks that belong to no slot."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that belong to a slot."""
        return len(self.owner) - 1 - len(self._free)

    def missing(self, slots: Ints, tokens: Ints) -> Ints:
        """Blocks that each of these slots lacks to hold so many tokens."""
        lacking: Ints = -(-tokens // BLOCK) - self.owned[slots]
        return lacking

    def read(self, slot: int, tokens: int) -> bytes:
        """The first `tokens` keys and values of a slot: float32, little-endian [2, layers, tokens, kv_heads,
        head_dim]."""
        layers = len(self.store)
        elements = self._elements(*self._blocks(np.full(tokens, slot), np.arange(tokens)))
        pairs = self.store.index_select(1, elements.view(-1)).view(layers, tokens, 2, -1)
        return bytes(pairs.permute(2, 0, 1, 3).numpy().astype("<f4").tobytes())

    def restore(self, slot: int, tokens: int, data: bytes) -> None:
        """Give a slot that has no blocks what `read` gave: from now on it holds these tokens."""
        self.reserve(slot, tokens)
        layers = len(self.store)
        flat = np.frombuffer(data, dtype="<f4").astype(np.float32).reshape(2, layers, tokens, -1)
        elements = self.place(np.full(tokens, slot), np.arange(tokens))
        pairs = np.ascontiguousarray(flat.transpose(1, 2, 0, 3)).reshape(layers, -1)
        self.store.index_copy_(1, elements.view(-1), torch.from_numpy(pairs))

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
        return self._elements(*self._see(slots, positions))

    def _elements(self, blocks: Ints, offsets: Ints) -> torch.Tensor:
        base = blocks * self._block_size
        keys = (base + offsets)[:, None] + self._key_start
        values = (base + offsets * self._dim)[:, None] + self._value_start
        return torch.from_numpy(np.concatenate([keys, values], axis=1))

    def _see(self, slots: Ints, positions: Ints) -> tuple[Ints, Ints]:
        blocks, offsets = self._blocks(slots, positions)
        self._mask[blocks, offsets] = 0.0
        return blocks, offsets

    def _blocks(self, slots: Ints, positions: Ints) -> tuple[Ints, Ints]:
        ordinals, offsets = np.divmod(positions, BLOCK)
        return self.table[slots, ordinals], offsets

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
