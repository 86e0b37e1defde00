"""Compiled loops against formulas written out, and the law that a row depends on itself alone, bit for bit."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.compiled import exp_in_place, gate
from offbeat.rollout import kernels
from offbeat.rollout.cache import BlockCache
from offbeat.rollout.config import read_shape
from offbeat.rollout.forward import TILE, Forward, Rows
from offbeat.rollout.kernels import BLOCK
from offbeat.rollout.weights import read_weights
from tests.rollout.tiny import FAMILIES, VOCAB, built, weights

CONTEXT = 3 * BLOCK


def test_exp_is_exp() -> None:
    x = np.linspace(-59, 59, 40_001).astype(np.float32)
    ours, power = x.copy(), np.empty(len(x), np.int32)
    exp_in_place(ours, np.float32(0), len(x), power, power.view(np.float32))
    assert np.abs(ours / np.exp(x.astype(np.float64)) - 1).max() < 5e-6, (
        "rounding of x log2(e), at most 59 log2(e) 2^-24"
    )
    near = np.abs(x) < 1
    assert np.abs(ours[near] / np.exp(x[near].astype(np.float64)) - 1).max() < 3e-7


def test_gate_is_silu_times_up_also_far_out() -> None:
    both = np.array([[-1e30, -200.0, -1.5, 0.0, 2.0, 300.0, *[3.0] * 6]], np.float32)
    out = np.empty((1, 6), np.float32)
    gate(both, out)
    expected = [3 * float(x) * (1 / (1 + math.exp(-float(x))) if x > -100 else 0.0) for x in both[0, :6]]
    assert out[0] == pytest.approx(expected, rel=1e-6, abs=1e-4)


@settings(deadline=None)
@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=50), st.floats(0, 1, exclude_max=True))
def test_choose_inverts_the_cumulated_probabilities(logits: list[float], level: float) -> None:
    tokens, logprobs, again = np.empty(1, np.int64), np.empty(1, np.float32), np.empty(1, np.float32)
    kernels.choose(np.array([logits], np.float32), np.array([level]), np.array([False]), tokens, logprobs)
    weight = [math.exp(x - max(logits)) for x in logits]
    below, token = sum(weight[: tokens[0]]) / sum(weight), int(tokens[0])
    assert below - 1e-6 <= level <= below + weight[token] / sum(weight) + 1e-6
    assert logprobs[0] == pytest.approx(math.log(weight[token] / sum(weight)), abs=2e-5)
    kernels.logprobs_of(np.array([logits], np.float32), tokens, again)
    assert again[0] == logprobs[0]
    kernels.choose(np.array([logits], np.float32), np.array([level]), np.array([True]), tokens, logprobs)
    assert tokens[0] == np.argmax(logits)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, CONTEXT), min_size=1, max_size=6),
    strangers=st.lists(st.integers(1, CONTEXT), max_size=3),
    at=st.integers(0, 5),
)
def test_a_rows_logits_depend_on_its_own_sequence_alone(
    family: str, lengths: list[int], strangers: list[int], at: int
) -> None:
    """Several sequences of one version with strangers of another, in one pass, and each alone: the same bits."""
    shape = read_shape(built(family)[1])
    own, other = (read_weights(weights(family, seed), shape) for seed in (0, 1))

    def rows(sizes: list[int], first: int, version: object) -> Rows:
        ids = [np.array([(5 * (first + i) + 3 * k + k * k) % VOCAB for k in range(n)]) for i, n in enumerate(sizes)]
        slots = np.repeat(first + np.arange(len(sizes)), sizes)
        return Rows(version, np.concatenate(ids), np.concatenate([*map(np.arange, sizes)]), slots)  # type: ignore[arg-type]

    def computed(parts: list[Rows], sizes: dict[int, int]) -> np.ndarray:
        cache = BlockCache(shape, 9, CONTEXT)
        for slot, size in sizes.items():
            cache.reserve(slot, size)
        return Forward(shape, CONTEXT).logits(parts, cache)

    parts = [rows(lengths, 0, own), *([rows(strangers, 6, other)] if strangers else [])]
    together = computed(
        parts[::-1] if at % 2 else parts, dict(enumerate(lengths)) | {6 + i: n for i, n in enumerate(strangers)}
    )
    together = together[sum(strangers) :] if at % 2 else together
    at %= len(lengths)
    start = sum(lengths[:at])
    mine = Rows(own, *(a[start : start + lengths[at]] for a in (parts[0].tokens, parts[0].positions, parts[0].slots)))
    assert np.array_equal(computed([mine], {at: lengths[at]}), together[start : start + lengths[at]])


def test_products_of_a_tile_treat_all_its_rows_alike() -> None:
    """What the invariant asks of this machine's matrix library: a row's place in the tile and its neighbours do not
    matter."""
    for width, out in ((32, 48), (128, 512), (96, 41)):
        torch.manual_seed(width)
        matrix, row = torch.randn(width, out), torch.randn(width)
        alike = torch.mm(row.expand(TILE, width).contiguous(), matrix)
        for place in range(TILE):
            mixed = torch.randn(TILE, width)
            mixed[place] = row
            assert torch.equal(torch.mm(mixed, matrix)[place], alike[0])


def test_without_a_place_for_compiled_code_it_is_compiled_each_time(tmp_path: Path) -> None:
    """As on a read-only system: the package cannot be written beside and there is no home."""
    package = tmp_path / "read_only"
    package.mkdir()
    source = Path(kernels.__file__).read_text()
    (package / "kernels_copy.py").write_text(source)
    program = (
        "import numba.core.caching as c\n"
        "c.FunctionCache._impl_class._locator_classes = []\n"
        "import numpy as np, kernels_copy as k\n"
        "x = np.ones((1, 4), np.float32)\nout = x.copy()\nk.unit(x, 0.0, out)\nassert abs(out[0, 0] - 0.5) < 1e-6\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=package,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(package)},
    )
    assert done.returncode == 0, done.stderr
