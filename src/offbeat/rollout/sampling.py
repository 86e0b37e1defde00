"""Sampling by inverse CDF with numbers that depend on (seed, position) alone, and exact behaviour log-probs.

Invariant: what a row draws depends on its logits, settings, seed and position alone, bit for bit.
Knows logits and sampling settings; no model, no cache, no requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.rollout.kernels import choose

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Seeds = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Draw:
    """One token per row [A] with its log-prob under the behaviour policy; `finite` [A] tells which rows may be used.

    `support` is None unless a row cuts its distribution: then per row the kept token ids, or None.
    """

    tokens: Ints
    behaviour_logprobs: NDArray[np.float32]
    finite: NDArray[np.bool_]
    support: list[Ints | None] | None


@dataclass(frozen=True, slots=True)
class RowSampling:
    """Settings per row [A]: temperature (0 greedy), top_k (0: all), top_p (1: all), seed and response position."""

    temperature: Floats
    top_k: Ints
    top_p: Floats
    seed: Seeds
    position: Ints


def seed_word(seed: int) -> int:
    """A caller's seed, any whole number, as 64 bits."""
    return seed & _MASK


def uniform(seed: Seeds, position: Ints) -> Floats:
    """Numbers in [0, 1) with 48 random bits: splitmix64 (Steele, Lea, Flood 2014) of the mixed seed + position."""
    word = _mixed(seed + _GOLDEN) + (position.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    return (_mixed(word) >> np.uint64(16)).astype(np.float64) * 2.0**-48


def _mixed(word: Seeds) -> Seeds:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def draw(logits: NDArray[np.float32], rows: RowSampling) -> Draw:
    """Sample one token per row of logits [A, vocab].

    A row with temperature 0 takes the most likely token; its log-prob is that of the temperature-1 distribution
    without cut. Otherwise the distribution is softmax(logits / temperature), cut to the top_k most likely tokens,
    then to the fewest of them that hold top_p of what is left, and normalised again.
    """
    count, vocab = logits.shape
    finite: NDArray[np.bool_] = np.asarray(np.isfinite(logits).all(1))
    greedy = rows.temperature == 0
    if not np.all(rows.temperature == 1):
        logits = logits / np.where(greedy, 1.0, rows.temperature).astype(np.float32)[:, None]
    cut = ((rows.top_k > 0) & (rows.top_k < vocab)) | (rows.top_p < 1)
    cut &= ~greedy & finite
    if cut.any():
        logits = _cut(torch.from_numpy(logits), np.flatnonzero(cut), rows).numpy()
    tokens, logprobs = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.float32)
    choose(logits, uniform(rows.seed, rows.position), greedy, tokens, logprobs)
    return Draw(tokens, logprobs, finite, _support(logits, cut) if cut.any() else None)


def _cut(logits: Tensor, at: Ints, rows: RowSampling) -> Tensor:
    """Logits with -inf wherever rows `at` cut. Among equal logits the lower token id counts as likelier."""
    part, vocab = logits[at], logits.shape[1]
    top_k, top_p = torch.from_numpy(rows.top_k[at]), torch.from_numpy(rows.top_p[at])
    ranked, order = part.sort(dim=1, descending=True, stable=True)
    keep = torch.where(top_k == 0, vocab, top_k).unsqueeze(1)
    ranked = ranked.masked_fill(torch.arange(vocab) >= keep, -torch.inf)
    share = torch.softmax(ranked.double(), 1)
    before = share.cumsum(1) - share
    dropped = (before >= top_p.unsqueeze(1)) & (top_p < 1).unsqueeze(1)
    dropped[:, 0] = False
    ranked = ranked.masked_fill(dropped, -torch.inf)
    whole = logits.clone()
    whole[at] = torch.empty_like(part).scatter_(1, order, ranked)
    return whole


def _support(logits: NDArray[np.float32], cut: NDArray[np.bool_]) -> list[Ints | None]:
    kept = np.isfinite(logits)
    return [np.flatnonzero(kept[row]) if cut[row] else None for row in range(len(cut))]
