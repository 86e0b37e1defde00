"""The forward pass over a ragged batch of token rows: decoding rows and whole prompts of several versions at once.

Rows are sorted by version, so each matrix product is one contiguous segment per version; norms, rotation and
attention run over all rows together. Formulas: the Llama, Qwen2 and Qwen3 decoders of `transformers`, with the
foldings of `weights.py`. Knows nothing of requests, slots or sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import split_with_sizes as _split

from offbeat.rollout.attention import CacheWrites, DecodeRows, PromptRows, attend, write
from offbeat.rollout.cache import BlockCache
from offbeat.rollout.config import ModelShape
from offbeat.rollout.weights import LayerWeights, VersionWeights

W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch of N token rows. Segment i is the next `sizes[i]` rows, of `versions[i]`.

    Logits are wanted of the rows `wanted` [Q] (None: all), of which `wanted_sizes[i]` lie in segment i.
    """

    versions: Sequence[VersionWeights]
    sizes: list[int]
    tokens: Tensor
    positions: Tensor
    decode: DecodeRows | None
    prompts: PromptRows | None
    writes: CacheWrites | None
    wanted: Tensor | None
    wanted_sizes: list[int]


def rotation_table(shape: ModelShape, context: int) -> Tensor:
    """Unit complex numbers [context, head_dim / 2]: position times frequency, as angles."""
    angles = torch.outer(torch.arange(context, dtype=torch.float32), torch.tensor(shape.frequencies))
    return torch.polar(torch.ones_like(angles), angles)


def logits(shape: ModelShape, rotation: Tensor, rows: Rows, cache: BlockCache | None) -> Tensor:
    """Logits [Q, vocab] of the wanted rows; writes keys and values into the cache where `rows.writes` says so."""
    x = _per_version(_embed, rows.tokens, rows.sizes, rows.versions, shape.width)
    turn = rotation.index_select(0, rows.positions).unsqueeze(1)
    for layer in range(shape.layers):
        weights = [version.layers[layer] for version in rows.versions]
        qkv = _per_version(_qkv, _unit(x, shape.rms_eps), rows.sizes, weights, shape.qkv_width)
        _rotate(qkv, turn, rows.sizes, weights, shape)
        if rows.writes is not None and cache is not None:
            write(qkv, rows.writes, cache, layer, shape)
        heads = attend(qkv, rows.decode, rows.prompts, cache, layer, shape)
        _add_product(x, heads, rows.sizes, [(w.out, w.out_bias) for w in weights])
        both = _per_version(_gate_up, _unit(x, shape.rms_eps), rows.sizes, weights, 2 * shape.hidden)
        hidden = F.silu(both[:, : shape.hidden]).mul_(both[:, shape.hidden :])
        _add_product(x, hidden, rows.sizes, [(w.down, w.down_bias) for w in weights])
    if rows.wanted is not None:
        x = x.index_select(0, rows.wanted)
    return _per_version(_head, _unit(x, shape.rms_eps), rows.wanted_sizes, rows.versions, shape.vocab)


def _per_version(
    apply: Callable[[Tensor, W, Tensor], None], x: Tensor, sizes: list[int], weights: Sequence[W], width: int
) -> Tensor:
    """[N, ...] -> [N, width]: each segment by its own version's weights, into one tensor."""
    y = torch.empty(x.shape[0], width)
    if len(weights) == 1:
        apply(x, weights[0], y)
        return y
    for part, w, out in zip(_split(x, sizes), weights, _split(y, sizes), strict=True):
        apply(part, w, out)
    return y


def _embed(tokens: Tensor, w: VersionWeights, out: Tensor) -> None:
    torch.index_select(w.embed, 0, tokens, out=out)


def _head(x: Tensor, w: VersionWeights, out: Tensor) -> None:
    torch.mm(x, w.head, out=out)


def _qkv(x: Tensor, w: LayerWeights, out: Tensor) -> None:
    _affine(x, w.qkv, w.qkv_bias, out)


def _gate_up(x: Tensor, w: LayerWeights, out: Tensor) -> None:
    _affine(x, w.gate_up, w.gate_up_bias, out)


def _affine(x: Tensor, matrix: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(x, matrix, out=out)
    else:
        torch.addmm(bias, x, matrix, out=out)


def _add_product(x: Tensor, y: Tensor, sizes: list[int], weights: Sequence[tuple[Tensor, Tensor | None]]) -> None:
    """x += y @ matrix + bias, in place, each segment by its own version's weights."""
    xs, ys = ((x,), (y,)) if len(weights) == 1 else (_split(x, sizes), _split(y, sizes))
    for to, part, (matrix, bias) in zip(xs, ys, weights, strict=True):
        to.addmm_(part, matrix)
        if bias is not None:
            to.add_(bias)


def _unit(x: Tensor, eps: float) -> Tensor:
    """RMS norm over the last axis without its gain and without sqrt(features), which the weights hold."""
    return x * x.square().sum(-1, keepdim=True).add_(x.shape[-1] * eps).rsqrt_()


def _rotate(qkv: Tensor, turn: Tensor, sizes: list[int], weights: Sequence[LayerWeights], shape: ModelShape) -> None:
    """Norm (Qwen3) and rotate queries and keys in place: one complex product per pair of features."""
    dim = shape.head_dim
    heads = qkv.view(qkv.shape[0], -1, dim)[:, : shape.heads + shape.kv_heads]
    if shape.qk_norm:
        heads.mul_(heads.square().sum(-1, keepdim=True).add_(dim * shape.rms_eps).rsqrt_())
        parts = (heads,) if len(weights) == 1 else _split(heads, sizes)
        for part, w in zip(parts, weights, strict=True):
            if w.qk_gain is not None:
                part.mul_(w.qk_gain)
    torch.view_as_complex(heads.view(*heads.shape[:2], dim // 2, 2)).mul_(turn)
