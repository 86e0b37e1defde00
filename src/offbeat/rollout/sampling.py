"""Sampling by inverse CDF with numbers that depend on (seed, position) alone, and exact behaviour log-probs.

Invariant: what a request samples does not depend on its neighbours, its slot or when it started, up to rounding
in the logits (a uniform number within that rounding of a border of the CDF may fall on either side).
Knows logits and sampling settings; no model, no cache, no requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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


def draw(logits: Tensor, rows: RowSampling) -> Draw:
    """Sample one token per row of logits [A, vocab].

    A row with temperature 0 takes the most likely token; its log-prob is that of the temperature-1 distribution
    without cut. Otherwise the distribution is softmax(logits / temperature), cut to the top_k most likely tokens,
    then to the fewest of them that hold top_p of what is left, and normalised again.
    """
    finite = np.isfinite(logits.sum(1).numpy())
    greedy = rows.temperature == 0
    if not np.all(rows.temperature == 1):
        heat = np.where(greedy, 1.0, rows.temperature).astype(np.float32)
        logits = logits / torch.from_numpy(heat).unsqueeze(1)
    cut = ((rows.top_k > 0) & (rows.top_k < logits.shape[1])) | (rows.top_p < 1)
    cut &= ~greedy & finite
    if cut.any():
        at = np.flatnonzero(cut)
        logits = _cut(logits, at, rows)
    logprobs = torch.log_softmax(logits, 1)
    ladder = logprobs.exp().cumsum(1, dtype=torch.float64)
    level = torch.from_numpy(uniform(rows.seed, rows.position)).unsqueeze(1) * ladder[:, -1:]
    chosen = torch.searchsorted(ladder, level, right=True).clamp_(max=logits.shape[1] - 1)
    if greedy.any():
        chosen = torch.where(torch.from_numpy(greedy).unsqueeze(1), logits.argmax(1, keepdim=True), chosen)
    taken = logprobs.gather(1, chosen)
    support = _support(logits, cut) if cut.any() else None
    return Draw(chosen.squeeze(1).numpy(), taken.squeeze(1).numpy(), finite, support)


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


def _support(logits: Tensor, cut: NDArray[np.bool_]) -> list[Ints | None]:
    kept = np.isfinite(logits.numpy())
    return [np.flatnonzero(kept[row]) if cut[row] else None for row in range(len(cut))]
