"""Blocks: each belongs to one slot or none, contents survive moving, nothing is left behind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.rollout.cache import BlockCache
from offbeat.rollout.config import read_shape
from offbeat.rollout.kernels import BLOCK
from tests.rollout.tiny import built

SLOTS, CONTEXT = 12, 4 * BLOCK


def fill(cache: BlockCache, slot: int, start: int, stop: int) -> None:
    """Write value 1000 slot + position into every feature of these positions."""
    for position in range(start, stop):
        block, offset = cache.table[slot, position // BLOCK], position % BLOCK
        cache.keys[:, block, :, :, offset] = cache.values[:, block, :, offset] = 1000.0 * slot + position


def check(cache: BlockCache, held: dict[int, int]) -> None:
    owned = [block for slot in held for block in cache.table[slot, : cache.owned[slot]].tolist()]
    assert len(set(owned)) == len(owned)
    assert 0 not in owned
    assert sorted([*owned, *cache._free]) == list(range(1, cache.keys.shape[1]))
    assert cache.used == len(owned)
    for slot, tokens in held.items():
        for position in range(tokens):
            block, offset = cache.table[slot, position // BLOCK], position % BLOCK
            expected = 1000.0 * slot + position
            assert (cache.keys[:, block, :, :, offset] == expected).all()
            assert (cache.values[:, block, :, offset] == expected).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, SLOTS - 1), st.integers(0, CONTEXT)), max_size=40))
def test_slots_keep_their_own(actions: list[tuple[int, int]]) -> None:
    """(slot, tokens): grow the slot to so many tokens, or release it when it has more already."""
    cache, held = BlockCache(read_shape(built("qwen3")[1]), SLOTS, CONTEXT), dict[int, int]()
    for slot, tokens in actions:
        if tokens > held.get(slot, 0):
            cache.reserve(slot, tokens)
            fill(cache, slot, held.get(slot, 0), tokens)
            held[slot] = tokens
        elif slot in held:
            cache.release(slot)
            del held[slot]
    check(cache, held)


def test_adopted_tokens_are_copies() -> None:
    cache = BlockCache(read_shape(built("qwen3")[1]), SLOTS, CONTEXT)
    for holder, tokens in ((0, 70), (1, 33)):
        cache.reserve(holder, tokens)
        fill(cache, holder, 0, tokens)
    cache.adopt([2, 3], [0, 1], [65, 32])
    copied = cache.table[2, :3]
    assert cache.owned[[2, 3]].tolist() == [3, 1]
    assert not set(copied.tolist()) & set(cache.table[0].tolist())
    assert (cache.keys[:, copied[2], :, :, 0] == 64).all()
    assert (cache.values[:, cache.table[3, 0], :, 31] == 1031).all()


@pytest.mark.parametrize("tokens", [1, BLOCK, BLOCK + 1, CONTEXT])
def test_what_is_read_can_be_restored_elsewhere(tokens: int) -> None:
    shape = read_shape(built("qwen3")[1])
    cache, other = BlockCache(shape, SLOTS, CONTEXT), BlockCache(shape, 3, CONTEXT, tokens=CONTEXT + 1)
    cache.reserve(5, CONTEXT)
    fill(cache, 5, 0, CONTEXT)
    data = cache.read(5, tokens)
    laid = np.frombuffer(data, "<f4").reshape(2, shape.layers, tokens, shape.kv_heads, shape.head_dim)
    assert (laid == 5000 + np.arange(tokens)[:, None, None]).all()
    other.restore(2, tokens, data)
    assert other.used == -(-tokens // BLOCK)
    assert other.free == -(-(CONTEXT + 1) // BLOCK) - other.used
    assert other.read(2, tokens) == data


def test_keys_and_values_are_read_feature_by_feature() -> None:
    shape = read_shape(built("qwen3")[1])
    cache = BlockCache(shape, 2, CONTEXT)
    cache.reserve(1, 40)
    cache.keys[:] = np.arange(cache.keys.size).reshape(cache.keys.shape)
    cache.values[:] = -np.arange(cache.values.size).reshape(cache.values.shape)
    laid = np.frombuffer(cache.read(1, 40), "<f4").reshape(2, shape.layers, 40, shape.kv_heads, shape.head_dim)
    block = cache.table[1, 1]
    for layer, head, feature in np.ndindex(shape.layers, shape.kv_heads, shape.head_dim):
        assert laid[0, layer, 39, head, feature] == cache.keys[layer, block, head, feature, 39 - BLOCK]
        assert laid[1, layer, 39, head, feature] == cache.values[layer, block, head, 39 - BLOCK, feature]


def test_wiped_blocks_are_clean() -> None:
    cache = BlockCache(read_shape(built("qwen3")[1]), SLOTS, CONTEXT)
    cache.reserve(4, 40)
    fill(cache, 4, 0, 40)
    cache.release(4, wipe=True)
    assert not cache.keys.any()
    assert not cache.values.any()
