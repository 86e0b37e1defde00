"""Blocks: each belongs to one slot or none, contents survive moving, nothing is left behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.rollout.cache import BLOCK, UNSEEN, BlockCache
from offbeat.rollout.config import read_shape
from tests.rollout.tiny import built

SLOTS, CONTEXT = 12, 4 * BLOCK


def fill(cache: BlockCache, slot: int, start: int, stop: int) -> None:
    """Write value 1000 slot + position into every feature of these positions."""
    positions = np.arange(start, stop)
    elements = cache.place(np.full(len(positions), slot), positions)
    for layer in cache.store:
        layer[elements] = (1000.0 * slot + cache.store.new_tensor(positions)).unsqueeze(1)


def check(cache: BlockCache, held: dict[int, int]) -> None:
    owned = [block for slot in held for block in cache.table[slot, : cache.owned[slot]].tolist()]
    assert len(set(owned)) == len(owned)
    assert 0 not in owned
    assert sorted(np.flatnonzero(cache.owner >= 0).tolist()) == sorted(owned)
    assert sorted([*owned, *cache._free]) == list(range(1, len(cache.owner)))
    assert (cache.mask[0] == UNSEEN).all()
    assert int((cache.mask == 0).sum()) == sum(held.values())
    for slot, tokens in held.items():
        for position in range(tokens):
            block, offset = cache.table[slot, position // BLOCK], position % BLOCK
            assert cache.owner[block] == slot
            assert cache.mask[block, offset] == 0
            expected = 1000.0 * slot + position
            assert (cache.keys[:, block, :, :, offset] == expected).all()
            assert (cache.values[:, block, :, offset] == expected).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, SLOTS - 1), st.integers(0, CONTEXT), st.booleans()), max_size=40))
def test_slots_keep_their_own(actions: list[tuple[int, int, bool]]) -> None:
    """(slot, tokens, tidy): grow the slot to so many tokens, or release it when it has more already."""
    cache, held = BlockCache(read_shape(built("qwen3")[1]), SLOTS, CONTEXT), dict[int, int]()
    for slot, tokens, tidy in actions:
        if tokens > held.get(slot, 0):
            cache.reserve(slot, tokens)
            fill(cache, slot, held.get(slot, 0), tokens)
            held[slot] = tokens
        elif slot in held:
            cache.release(slot)
            del held[slot]
        if tidy:
            cache.tidy()
            assert (cache.owner[cache.span :] == -1).all()
    check(cache, held)


def test_holes_are_closed() -> None:
    cache = BlockCache(read_shape(built("qwen3")[1]), SLOTS, CONTEXT)
    for slot in range(SLOTS):
        cache.reserve(slot, CONTEXT)
        fill(cache, slot, 0, CONTEXT)
    for slot in range(SLOTS - 2):
        cache.release(slot)
    cache.tidy()
    assert cache.span == 1 + 2 * CONTEXT // BLOCK
    check(cache, {SLOTS - 2: CONTEXT, SLOTS - 1: CONTEXT})


def test_adopted_tokens_are_copies() -> None:
    cache = BlockCache(read_shape(built("qwen3")[1]), SLOTS, CONTEXT)
    for holder, tokens in ((0, 70), (1, 33)):
        cache.reserve(holder, tokens)
        fill(cache, holder, 0, tokens)
    cache.adopt([2, 3], [0, 1], [65, 32])
    copied = cache.table[2, :3]
    assert cache.owned[[2, 3]].tolist() == [3, 1]
    assert not set(copied.tolist()) & set(cache.table[0].tolist())
    assert int((cache.mask[copied] == 0).sum()) == 65
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
    assert int((other.mask == 0).sum()) == tokens


def test_keys_and_values_are_read_feature_by_feature() -> None:
    shape = read_shape(built("qwen3")[1])
    cache = BlockCache(shape, 2, CONTEXT)
    cache.reserve(1, 40)
    cache.store.copy_(torch.arange(cache.store.numel()).view(cache.store.shape))
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
    assert not cache.store.any()
