"""Turns slots and prompts into the ragged rows of one forward pass: index arithmetic only.

Invariant: a row is decoded with the weights of its own slot's version (C1). Rows are ordered by version;
within one, decoding rows come before prompt tokens. Prompts shared by several slots are computed once and
written to each. Knows no logits, no sampling, and does not run the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from offbeat.rollout.attention import CacheWrites, DecodeRows, PromptRows
from offbeat.rollout.cache import BLOCK, BlockCache
from offbeat.rollout.forward import Rows
from offbeat.rollout.slots import Slots
from offbeat.rollout.weights import VersionWeights

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """A prompt [P] under one version and the slots that begin with it."""

    version: int
    prompt_ids: tuple[int, ...]
    slots: list[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step. Slot `slots[i]` samples from logits row `logits_rows[i]` (None: row i)."""

    rows: Rows
    slots: Ints
    logits_rows: Ints | None


def decode_batch(slots: Slots, cache: BlockCache, weights: Mapping[int, VersionWeights]) -> Batch:
    """All running slots, none of which owes a prompt; at least one."""
    at = np.flatnonzero(slots.running())
    version = slots.version[at]
    if (version != version[0]).any():
        order = np.argsort(version, kind="stable")
        at, version = at[order], version[order]
    numbers, sizes, _ = _segments(version)
    position = slots.length[at]
    rows = Rows(
        versions=[weights[number] for number in numbers],
        sizes=sizes,
        tokens=torch.from_numpy(slots.last[at]),
        positions=torch.from_numpy(position),
        decode=_decode_rows(at, position, cache, None),
        prompts=None,
        writes=CacheWrites(cache.place(at, position), None),
        wanted=None,
        wanted_sizes=sizes,
    )
    return Batch(rows, at, None)


def mixed_batch(
    slots: Slots, cache: BlockCache, prompts: Sequence[SharedPrompt], weights: Mapping[int, VersionWeights]
) -> Batch:
    """All running slots with the prompts some of them owe; at least one prompt."""
    at = np.flatnonzero(slots.running() & (slots.length > 0))
    lengths = np.array([len(prompt.prompt_ids) for prompt in prompts])
    ends = len(at) + np.cumsum(lengths)
    version = np.concatenate([slots.version[at], np.repeat([prompt.version for prompt in prompts], lengths)])
    order = np.argsort(version, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    tokens = np.concatenate([slots.last[at], *(np.array(prompt.prompt_ids) for prompt in prompts)])
    inside = np.arange(len(order) - len(at)) - np.repeat(ends - lengths - len(at), lengths)
    positions = np.concatenate([slots.length[at], inside])
    source, holder = _shared_writes(at, ends, prompts)
    last = place[ends - 1]
    wanted = np.sort(np.concatenate([place[: len(at)], last]))
    numbers, sizes, bounds = _segments(version[order])
    readers = np.concatenate([place[: len(at)], np.repeat(last, [len(prompt.slots) for prompt in prompts])])
    rows = Rows(
        versions=[weights[number] for number in numbers],
        sizes=sizes,
        tokens=torch.from_numpy(tokens[order]),
        positions=torch.from_numpy(positions[order]),
        decode=_decode_rows(at, slots.length[at], cache, place[: len(at)]) if len(at) else None,
        prompts=_prompt_rows(place[len(at) :], lengths),
        writes=CacheWrites(cache.place(holder, positions[source]), torch.from_numpy(place[source])),
        wanted=torch.from_numpy(wanted),
        wanted_sizes=np.diff(np.searchsorted(wanted, bounds)).tolist(),
    )
    began = [slot for prompt in prompts for slot in prompt.slots]
    return Batch(rows, np.concatenate([at, np.array(began)]), np.searchsorted(wanted, readers))


def whole_sequence(token_ids: Sequence[int], first: int, weights: VersionWeights) -> Rows:
    """One sequence without cache, logits wanted from position `first` on."""
    length = len(token_ids)
    return Rows(
        versions=[weights],
        sizes=[length],
        tokens=torch.tensor(token_ids),
        positions=torch.arange(length),
        decode=None,
        prompts=_prompt_rows(np.arange(length), np.array([length])),
        writes=None,
        wanted=torch.arange(first, length),
        wanted_sizes=[length - first],
    )


def _segments(version: Ints) -> tuple[list[int], list[int], Ints]:
    """Version numbers and sizes of the runs of a sorted array, and the runs' bounds including both ends."""
    bounds = np.concatenate([[0], np.flatnonzero(version[1:] != version[:-1]) + 1, [len(version)]])
    return version[bounds[:-1]].tolist(), np.diff(bounds).tolist(), bounds


def _decode_rows(at: Ints, position: Ints, cache: BlockCache, place: Ints | None) -> DecodeRows:
    row_of = np.full(len(cache.table) + 1, len(at), dtype=np.int64)
    row_of[at] = np.arange(len(at))
    reader = row_of[cache.owner[: cache.span]]
    row_at = np.arange(len(at)) if place is None else place
    blocks_of = position // BLOCK + 1
    table = cache.table[at, : blocks_of.max()]
    return DecodeRows(
        at=None if place is None else torch.from_numpy(place),
        reader=torch.from_numpy(reader),
        reader_at=torch.from_numpy(np.append(row_at, 0)[reader]),
        owned=torch.from_numpy(table[table > 0]),
        starts=torch.from_numpy(np.cumsum(blocks_of) - blocks_of),
    )


def _prompt_rows(place: Ints, lengths: Ints) -> PromptRows:
    """`place` [T] are the batch rows of all prompt tokens, prompt after prompt."""
    longest = int(lengths.max())
    column = np.arange(longest)
    starts = np.cumsum(lengths) - lengths
    padded = place[starts[:, None] + np.minimum(column, lengths[:, None] - 1)]
    inside = np.flatnonzero(column < lengths[:, None])
    return PromptRows(torch.from_numpy(place), torch.from_numpy(padded), torch.from_numpy(inside))


def _shared_writes(at: Ints, ends: Ints, prompts: Sequence[SharedPrompt]) -> tuple[Ints, Ints]:
    """Source (before sorting) and slot of every write: each decoding row to its own, each prompt to all its slots."""
    sources, holders = [np.arange(len(at))], [at]
    for prompt, end in zip(prompts, ends.tolist(), strict=True):
        span = np.arange(end - len(prompt.prompt_ids), end)
        sources.append(np.tile(span, len(prompt.slots)))
        holders.append(np.repeat(prompt.slots, len(span)))
    return np.concatenate(sources), np.concatenate(holders)
