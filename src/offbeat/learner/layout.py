"""From samples to padded tensors, with few tokens computed twice or for nothing.

Three layouts. *Plain*: a row is one prompt and one response. *Shared*: a row is one prompt and several responses
to it; each response attends to the prompt and to itself only, so the prompt is computed once per row.
Rows are sorted by length and cut where that costs least, so one long response does not pad everybody. *Tree*: the
same without rows, hence without padding, and without the last tokens of responses, which predict nothing.
*Same-numbers invariant*: all layouts give every response token the same log-prob. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.learner.batches import Sample

ROW_TOKENS = 384
"""Longest shared row, unless one response alone needs more: attention is quadratic in a row's length."""
FORWARD_TOKENS = 64
"""What a forward and backward pass costs apart from its tokens, in tokens (measured: 5 ms at 80 us a token)."""


@dataclass(frozen=True, slots=True)
class KeptIds:
    """The kept ids of the cut positions: pairs (position [M] in 0..N-1, token id [M]); `cut` [N] bool."""

    positions: Tensor
    token_ids: Tensor
    cut: Tensor


Layout = Literal["plain", "shared", "tree"]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tree:
    """T tokens of any number of texts. `tokens`, `positions` [T]; token i sees root[i] .. root[i] + stem[i] - 1 (the
    prompt) and begin[i] .. i (its own response, or the prompt so far)."""

    tokens: Ints
    positions: Ints
    root: Ints
    stem: Ints
    begin: Ints


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass: R rows of T padded tokens, B trajectories of at most L response tokens, N in all.

    `predicting` [N] are indices into the R*T positions, those whose logits predict `response_ids` [N]; both run
    through the trajectories in order, so that `response_mask` [B, L] is true exactly N times in that same order. Tokens
    that were given, not sampled, are in the row and in L but not among the N.
    `position_ids` [R, T] and `attention_bias` [R, 1, T, T] (0 or the lowest float) are None in the plain layout,
    where causal attention alone is right: the padding stands at the end. In the tree layout R is 1 and `tree` says
    who sees whom. `samples` [B] are what it was made of.
    """

    input_ids: Tensor
    position_ids: Tensor | None
    attention_bias: Tensor | None
    predicting: Tensor
    response_ids: Tensor
    kept: KeptIds | None
    response_mask: Tensor
    behaviour_logprobs: Tensor
    proximal_logprobs: Tensor | None
    advantages: Tensor
    samples: tuple[Sample, ...]
    tree: Tree | None = None

    @property
    def padded_tokens(self) -> int:
        return self.input_ids.numel()


Row = list[Sample]


def micro_batches(samples: Sequence[Sample], padded_tokens: int, layout: Layout) -> list[MicroBatch]:
    """Cut samples into micro-batches of at most `padded_tokens` padded tokens each; deterministic.

    Only a single trajectory that is longer by itself exceeds the bound, alone in its micro-batch.
    """
    if layout == "tree":
        return [_tree_batch(part) for part in _cut_families(_shared_rows(samples, padded_tokens), padded_tokens)]
    limit = min(padded_tokens, ROW_TOKENS)
    rows = _shared_rows(samples, limit) if layout == "shared" else [[sample] for sample in samples]
    rows.sort(key=_row_length)
    return [micro_batch(part) for part in _cut(rows, padded_tokens)]


def micro_batch(rows: Sequence[Row]) -> MicroBatch:
    """Tensors of the given rows; the samples of a row share their prompt."""
    width = max(map(_row_length, rows))
    shared = any(len(row) > 1 for row in rows)
    tokens: list[list[int]] = []
    positions: list[list[int]] = []
    branches: list[list[int]] = []
    predicting: list[int] = []
    for index, row in enumerate(rows):
        row_tokens, row_positions, row_branches, row_predicting = _lay_out(row, width)
        tokens.append(row_tokens)
        positions.append(row_positions)
        branches.append(row_branches)
        predicting.extend(index * width + position for position in row_predicting)
    return _filled(
        list(chain.from_iterable(rows)),
        predicting,
        torch.tensor(tokens),
        torch.tensor(positions) if shared else None,
        _branch_bias(torch.tensor(branches)) if shared else None,
        None,
    )


def _tree_batch(rows: Sequence[Row]) -> MicroBatch:
    """Each row's prompt, then its responses but for their last tokens, one after the other."""
    tokens: list[int] = []
    positions: list[int] = []
    bounds: list[tuple[int, int, int, int]] = []  # of each run of tokens: how many, root, stem, begin
    predicting: list[int] = []
    for row in rows:
        root, prompt = len(tokens), row[0].prompt_ids
        tokens.extend(prompt)
        positions.extend(range(len(prompt)))
        bounds.append((len(prompt), root, 0, root))
        for sample in row:
            begin, length = len(tokens), len(sample.response_ids) - 1
            predicting.extend(sample.of_sampled((root + len(prompt) - 1, *range(begin, begin + length))))
            tokens.extend(sample.response_ids[:-1])
            positions.extend(range(len(prompt), len(prompt) + length))
            bounds.append((length, root, len(prompt), begin))
    counts, *columns = np.array(bounds, dtype=np.int64).T
    roots, stems, begins = (np.repeat(column, counts) for column in columns)
    tree = Tree(np.array(tokens), np.array(positions), roots, stems, begins)
    return _filled(list(chain.from_iterable(rows)), predicting, torch.tensor([tokens]), None, None, tree)


def _filled(
    samples: Sequence[Sample], predicting: list[int], input_ids: Tensor, position_ids: Tensor | None,
    attention_bias: Tensor | None, tree: Tree | None,
) -> MicroBatch:  # fmt: skip
    longest = max(len(sample.response_ids) for sample in samples)
    mask = _response_mask(samples, longest)
    proximal = [s.of_sampled(s.proximal_logprobs) for s in samples if s.proximal_logprobs is not None]
    return MicroBatch(
        input_ids=input_ids,
        position_ids=position_ids,
        attention_bias=attention_bias,
        predicting=torch.tensor(predicting),
        response_ids=torch.tensor(
            list(chain.from_iterable(sample.of_sampled(sample.response_ids) for sample in samples))
        ),
        kept=_kept_ids(samples),
        response_mask=mask,
        behaviour_logprobs=_padded(mask, [sample.of_sampled(sample.behaviour_logprobs) for sample in samples]),
        proximal_logprobs=_padded(mask, proximal) if len(proximal) == len(samples) else None,
        advantages=torch.tensor([sample.advantage for sample in samples]),
        samples=tuple(samples),
        tree=tree,
    )


def _cut_families(rows: list[Row], tokens: int) -> list[list[Row]]:
    """Rows in their order, as many together as have at most `tokens` tokens."""
    parts: list[list[Row]] = []
    room = 0
    for row in rows:
        if _row_length(row) > room or not parts:
            parts.append([])
            room = tokens
        parts[-1].append(row)
        room -= _row_length(row)
    return parts


def _response_mask(samples: Sequence[Sample], longest: int) -> Tensor:
    """[B, longest] bool: where a trajectory has a token that was sampled."""
    lengths = torch.tensor([len(sample.response_ids) for sample in samples])
    mask = torch.arange(longest) < lengths.unsqueeze(1)
    for row, sample in enumerate(samples):
        if sample.loss_mask is not None:
            mask[row, : len(sample.loss_mask)] &= torch.tensor(sample.loss_mask)
    return mask


def _padded(mask: Tensor, logprobs: Sequence[Sequence[float]]) -> Tensor:
    """Ragged log-probs as [B, L], 0 outside the mask."""
    return torch.zeros(mask.shape).masked_scatter(mask, torch.tensor(list(chain.from_iterable(logprobs))))


def _row_length(row: Row) -> int:
    return len(row[0].prompt_ids) + sum(len(sample.response_ids) for sample in row)


def _shared_rows(samples: Sequence[Sample], limit: int) -> list[Row]:
    """Pack each group's responses behind its prompt, first-fit decreasing, into rows of at most `limit` tokens."""
    groups: dict[int, list[Row]] = {}
    for sample in sorted(samples, key=lambda sample: -len(sample.response_ids)):
        rows = groups.setdefault(sample.group_id, [])
        for row in rows:
            if _row_length(row) + len(sample.response_ids) <= limit:
                row.append(sample)
                break
        else:
            rows.append([sample])
    return list(chain.from_iterable(groups.values()))


def _cut(rows: list[Row], padded_tokens: int) -> list[list[Row]]:
    """Cut rows, sorted by length, into runs of least total cost: padded tokens plus FORWARD_TOKENS a run."""
    lengths = [_row_length(row) for row in rows]
    best = [0] + [-1] * len(rows)  # best[j]: least cost of the first j rows; start[j]: where its last run begins
    start = [0] * (len(rows) + 1)
    for end in range(1, len(rows) + 1):
        for begin in range(end - 1, -1, -1):
            padded = (end - begin) * lengths[end - 1]
            if padded > padded_tokens and end - begin > 1:
                break
            cost = best[begin] + padded + FORWARD_TOKENS
            if best[end] < 0 or cost < best[end]:
                best[end], start[end] = cost, begin
    runs: list[list[Row]] = []
    end = len(rows)
    while end:
        runs.append(rows[start[end] : end])
        end = start[end]
    return runs[::-1]


def _lay_out(row: Row, width: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Token ids, position ids and branches [width] of a row, and the positions that predict its responses.

    The prompt is branch 0, response i branch i + 1; the padding counts as branch 0, after everything else.
    """
    prompt = row[0].prompt_ids
    tokens, positions, branches = list(prompt), list(range(len(prompt))), [0] * len(prompt)
    predicting: list[int] = []
    for branch, sample in enumerate(row, start=1):
        length, begin = len(sample.response_ids), len(tokens)
        predicting.extend(sample.of_sampled((len(prompt) - 1, *range(begin, begin + length - 1))))
        tokens.extend(sample.response_ids)
        positions.extend(range(len(prompt), len(prompt) + length))
        branches.extend([branch] * length)
    padding = [0] * (width - len(tokens))
    return tokens + padding, positions + padding, branches + padding, predicting


def _branch_bias(branches: Tensor) -> Tensor:
    """Additive attention bias [R, 1, T, T]: a token sees earlier tokens of the prompt (branch 0) and its own branch."""
    width = branches.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    keys, queries = branches.unsqueeze(1), branches.unsqueeze(2)
    visible = causal & ((keys == 0) | (keys == queries))
    bias = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    return bias.unsqueeze(1)


def _kept_ids(samples: Sequence[Sample]) -> KeptIds | None:
    if all(sample.supports is None for sample in samples):
        return None
    cut: list[bool] = []
    positions: list[int] = []
    token_ids: list[int] = []
    for sample in samples:
        for kept in sample.of_sampled(sample.supports or (None,) * len(sample.response_ids)):
            if kept is not None:
                positions.extend([len(cut)] * len(kept))
                token_ids.extend(kept)
            cut.append(kept is not None)
    return KeptIds(torch.tensor(positions), torch.tensor(token_ids), torch.tensor(cut))
