"""Keys and values of all slots in blocks of `BLOCK` positions, so that a long response costs its own length only.

Invariant: a block belongs to one slot or to none; what a freed block still holds is finite. Block 0 belongs to none
for ever (the padding of tables). Free blocks are taken lowest first. Knows nothing of versions, tokens or requests.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from offbeat.rollout.config import ModelShape
from offbeat.rollout.kernels import BLOCK

Ints = NDArray[np.int64]


def blocks_for(tokens: int) -> int:
    """How many blocks hold so many tokens."""
    return -(-tokens // BLOCK)


class BlockCache:
    """`keys` [layers, blocks, kv_heads, head_dim, BLOCK] and `values` [layers, blocks, kv_heads, BLOCK, head_dim],
    float32. `table` [slots, blocks per slot] lists each slot's blocks in order, 0 where it has none; `owned` [slots]
    counts them. Memory is taken from the system only as blocks are first written.
    """

    def __init__(self, shape: ModelShape, slots: int, context: int, tokens: int | None = None) -> None:
        """Room for `context` tokens in every slot, or for `tokens` in all (rounded up to blocks) where that is less."""
        per_slot = blocks_for(context)
        most = slots * per_slot if tokens is None else min(slots * per_slot, blocks_for(tokens))
        blocks, kv, dim = 1 + most, shape.kv_heads, shape.head_dim
        self.bounded = most < slots * per_slot
        self.keys = np.zeros((shape.layers, blocks, kv, dim, BLOCK), dtype=np.float32)
        self.values = np.zeros((shape.layers, blocks, kv, BLOCK, dim), dtype=np.float32)
        self.table: Ints = np.zeros((slots, per_slot), dtype=np.int64)
        self.owned: Ints = np.zeros(slots, dtype=np.int64)
        self._blocks = most
        self._free = list(range(1, blocks))

    def reserve(self, slot: int, tokens: int) -> None:
        """Give the slot blocks for so many tokens in all; those it has stay."""
        for ordinal in range(int(self.owned[slot]), blocks_for(tokens)):
            self.table[slot, ordinal] = heapq.heappop(self._free)
            self.owned[slot] = ordinal + 1

    def release(self, slot: int, wipe: bool = False) -> None:
        """Take the slot's blocks back; `wipe` also clears them, for values that are not finite."""
        blocks = self.table[slot, : self.owned[slot]].copy()
        self.table[slot] = 0
        self.owned[slot] = 0
        for block in blocks.tolist():
            heapq.heappush(self._free, block)
        if wipe:
            self.keys[:, blocks] = 0.0
            self.values[:, blocks] = 0.0

    def adopt(self, slots: list[int], holders: list[int], tokens: list[int]) -> None:
        """Copy the first `tokens[i]` tokens of slot `holders[i]` into `slots[i]`, which holds none."""
        for slot, holder, count in zip(slots, holders, tokens, strict=True):
            self.reserve(slot, count)
            of, to = self.table[holder, : blocks_for(count)], self.table[slot, : blocks_for(count)]
            self.keys[:, to] = self.keys[:, of]
            self.values[:, to] = self.values[:, of]

    @property
    def free(self) -> int:
        """Blocks that belong to no slot."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that belong to a slot."""
        return self._blocks - len(self._free)

    def missing(self, slots: Ints, tokens: Ints) -> Ints:
        """Blocks that each of these slots lacks to hold so many tokens."""
        lacking: Ints = -(-tokens // BLOCK) - self.owned[slots]
        return lacking

    def full(self, slots: Ints, tokens: Ints) -> NDArray[np.bool_]:
        """Which of these slots, holding so many tokens, have no room for one more."""
        room: NDArray[np.bool_] = tokens >= self.owned[slots] * BLOCK
        return room

    def read(self, slot: int, tokens: int) -> bytes:
        """The first `tokens` keys and values of a slot: float32, little-endian [2, layers, tokens, kv_heads,
        head_dim]."""
        blocks = self.table[slot, : blocks_for(tokens)]
        layers, _, kv, dim, _ = self.keys.shape
        keys = self.keys[:, blocks].transpose(0, 1, 4, 2, 3).reshape(layers, -1, kv, dim)[:, :tokens]
        values = self.values[:, blocks].transpose(0, 1, 3, 2, 4).reshape(layers, -1, kv, dim)[:, :tokens]
        return np.stack([keys, values]).astype("<f4").tobytes()

    def restore(self, slot: int, tokens: int, data: bytes) -> None:
        """Give a slot that has no blocks what `read` gave: from now on it holds these tokens."""
        self.reserve(slot, tokens)
        blocks = self.table[slot, : blocks_for(tokens)]
        layers, _, kv, dim, _ = self.keys.shape
        pairs = np.zeros((2, layers, len(blocks) * BLOCK, kv, dim), dtype=np.float32)
        pairs[:, :, :tokens] = np.frombuffer(data, dtype="<f4").reshape(2, layers, tokens, kv, dim)
        keys, values = pairs.reshape(2, layers, len(blocks), BLOCK, kv, dim)
        self.keys[:, blocks] = keys.transpose(0, 1, 3, 4, 2)
        self.values[:, blocks] = values.transpose(0, 1, 3, 2, 4)
