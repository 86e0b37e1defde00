"""Attention of one layer over a batch of token rows: decoding rows over the cache, prompts among themselves.

A decoding row attends block by block (sums of exp(score - the block's maximum)), and its blocks are joined by
rescaling to the row's maximum: exact softmax, at a cost proportional to the blocks in use and not to the longest
row. Prompts are attended causally, padded on the right. Queries arrive scaled and rotated. Knows no versions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from offbeat.rollout.cache import BLOCK, UNSEEN, BlockCache
from offbeat.rollout.config import ModelShape

NEGLIGIBLE = -60.0
"""exp of it is as good as 0 beside a 1 in float32, and far from the subnormal numbers that are slow to compute with."""


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """R rows that attend over the cache, in any order; `at` [R] are their batch rows (None: they are the batch).

    `reader` [blocks] numbers the one of these rows that owns a block (R for a block nobody reads) and `reader_at`
    [blocks] is its batch row (any for such a block); `owned` lists each row's blocks, row r's from `starts[r]` on.
    """

    at: Tensor | None
    reader: Tensor
    reader_at: Tensor
    owned: Tensor
    starts: Tensor


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Prompts of T tokens in all. `at` [T] are their batch rows; `padded` [prompts, longest] batch rows, padded on
    the right with any; `inside` [T] the tokens' places in the flattened `padded`."""

    at: Tensor
    padded: Tensor
    inside: Tensor


@dataclass(frozen=True, slots=True)
class CacheWrites:
    """Keys and values of batch row `source` [W] (None: all rows in order) go to `elements` [W, 2 kv_heads * head_dim]
    of a layer's store, as `BlockCache.place` gives them."""

    elements: Tensor
    source: Tensor | None


def write(qkv: Tensor, writes: CacheWrites, cache: BlockCache, layer: int, shape: ModelShape) -> None:
    """Store keys and values of rows qkv [N, (heads + 2 kv_heads) * head_dim]."""
    pairs = qkv[:, shape.heads * shape.head_dim :]
    pairs = pairs.contiguous() if writes.source is None else pairs.index_select(0, writes.source)
    cache.store[layer].scatter_(0, writes.elements.view(-1), pairs.view(-1))


def attend(
    qkv: Tensor,
    decode: DecodeRows | None,
    prompts: PromptRows | None,
    cache: BlockCache | None,
    layer: int,
    shape: ModelShape,
) -> Tensor:
    """Attention output [N, heads * head_dim] of all rows; decoding rows need the cache, with their own keys in it."""
    decoded = None
    if decode is not None and cache is not None:
        decoded = _over_cache(qkv, decode, cache, layer, shape)
        if decode.at is None:
            return decoded
    out = torch.empty(qkv.shape[0], shape.heads * shape.head_dim)
    if decode is not None and decode.at is not None and decoded is not None:
        out.index_copy_(0, decode.at, decoded)
    if prompts is not None:
        out.index_copy_(0, prompts.at, _among_prompts(qkv, prompts, shape))
    return out


def _over_cache(qkv: Tensor, rows: DecodeRows, cache: BlockCache, layer: int, shape: ModelShape) -> Tensor:
    heads, kv, group, dim = shape.heads, shape.kv_heads, shape.group, shape.head_dim
    blocks = rows.reader.shape[0]
    queries = qkv[:, : heads * dim].index_select(0, rows.reader_at).view(blocks * kv, group, dim)
    score = torch.bmm(queries, cache.keys[layer][:blocks].view(blocks * kv, dim, BLOCK)).view(blocks, heads, BLOCK)
    top = score.add_(cache.mask[:blocks].unsqueeze(1)).amax(-1)
    score.sub_(top.unsqueeze(-1)).clamp_(min=NEGLIGIBLE).exp_()
    values = cache.values[layer][:blocks].view(blocks * kv, BLOCK, dim)
    summed = torch.bmm(score.view(blocks * kv, group, BLOCK), values).view(blocks, heads, dim)
    row_top = torch.full((rows.starts.shape[0] + 1, heads), UNSEEN)
    row_top.scatter_reduce_(0, rows.reader.unsqueeze(1).expand(blocks, heads), top, "amax")
    share = top.sub_(row_top.index_select(0, rows.reader)).clamp_(min=NEGLIGIBLE).exp_()
    weight = score.sum(-1).mul_(share)
    summed.mul_(share.unsqueeze(-1))
    numerator = torch.embedding_bag(summed.view(blocks, heads * dim), rows.owned, rows.starts)[0]
    denominator = torch.embedding_bag(weight, rows.owned, rows.starts)[0]
    return numerator.view(-1, heads, dim).div_(denominator.unsqueeze(-1)).view(-1, heads * dim)


def _among_prompts(qkv: Tensor, rows: PromptRows, shape: ModelShape) -> Tensor:
    """[T, heads * head_dim]. Right padding needs no mask: what is causal never looks right."""
    prompts, longest = rows.padded.shape
    each = qkv.index_select(0, rows.padded.view(-1)).view(prompts, longest, -1, shape.head_dim).transpose(1, 2)
    q, k, v = torch.split_with_sizes(each, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, enable_gqa=shape.group > 1)
    return out.transpose(1, 2).reshape(prompts * longest, -1).index_select(0, rows.inside)
