"""Turns slots and prompts into the token rows of one step: index arithmetic only.

Invariant: a row is decoded with the weights of its own slot's version (C1). Prompts shared by several slots are
computed once, in the first of them. Knows no logits, no sampling, and does not run the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    """The rows of one step, version after version. Slot `slots[i]` samples from logits row `logits_rows[i]` of all
    their outputs in order (None: row i). The keys and values of `shared` prompts come to lie in their first slots."""

    parts: list[Rows]
    slots: Ints
    logits_rows: Ints | None
    shared: Sequence[SharedPrompt]


def decode_batch(slots: Slots, weights: Mapping[int, VersionWeights]) -> Batch:
    """All running slots, none of which owes a prompt; at least one."""
    at = np.flatnonzero(slots.running())
    at = at[np.argsort(slots.version[at], kind="stable")]
    parts = [_decoding(slots, of, weights[version]) for version, of in _by_version(slots, at)]
    return Batch(parts, at, None, ())


def mixed_batch(slots: Slots, prompts: Sequence[SharedPrompt], weights: Mapping[int, VersionWeights]) -> Batch:
    """All running slots with the prompts some of them owe; at least one prompt."""
    at = np.flatnonzero(slots.running() & (slots.length > 0))
    decoding = dict(_by_version(slots, at[np.argsort(slots.version[at], kind="stable")]))
    parts, readers, taken, done = list[Rows](), list[Ints](), list[Ints](), 0
    for version in sorted({*decoding, *(prompt.version for prompt in prompts)}):
        of = decoding.get(version, np.zeros(0, dtype=np.int64))
        owed = [prompt for prompt in prompts if prompt.version == version]
        lengths = [len(prompt.prompt_ids) for prompt in owed]
        running = _decoding(slots, of, weights[version])
        ends = len(of) + np.cumsum(lengths, dtype=np.int64)
        parts.append(
            Rows(
                weights[version],
                np.concatenate([running.tokens, *(np.array(prompt.prompt_ids) for prompt in owed)]),
                np.concatenate([running.positions, *map(np.arange, lengths)]),
                np.concatenate([of, np.repeat([prompt.slots[0] for prompt in owed], lengths).astype(np.int64)]),
                np.concatenate([np.arange(len(of)), ends - 1]),
            )
        )
        shares = [len(prompt.slots) for prompt in owed]
        readers.append(done + np.concatenate([np.arange(len(of)), np.repeat(len(of) + np.arange(len(owed)), shares)]))
        taken += [of, *(np.array(prompt.slots) for prompt in owed)]
        done += len(of) + len(owed)
    return Batch(parts, np.concatenate(taken), np.concatenate(readers), prompts)


def whole_sequence(token_ids: Sequence[int], first: int, weights: VersionWeights) -> Rows:
    """One sequence in slot 0, logits wanted from position `first` on."""
    positions = np.arange(len(token_ids))
    return Rows(weights, np.array(token_ids), positions, np.zeros_like(positions), positions[first:])


def _decoding(slots: Slots, at: Ints, weights: VersionWeights) -> Rows:
    return Rows(weights, slots.last[at], slots.length[at], at)


def _by_version(slots: Slots, at: Ints) -> list[tuple[int, Ints]]:
    """The slots `at`, ordered by version, split into those of each."""
    if not at.size:
        return []
    version = slots.version[at]
    borders = np.flatnonzero(version[1:] != version[:-1]) + 1
    return [(int(slots.version[part[0]]), part) for part in np.split(at, borders)]
