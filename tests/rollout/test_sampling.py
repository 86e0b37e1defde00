"""Sampling by inverse CDF: the numbers, the distribution, the cuts and their log-probs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.ports import Sampling
from offbeat.rollout.sampling import Draw, RowSampling, draw, seed_word, uniform
from tests.rollout.tiny import oracle_distribution

LOGITS = [0.3, -1.2, 2.0, 0.0, 1.1, -0.4, 1.9, -3.0]


def rows(samplings: list[Sampling], seeds: list[int], positions: list[int]) -> RowSampling:
    return RowSampling(
        np.array([s.temperature for s in samplings], dtype=np.float64),
        np.array([s.top_k for s in samplings]),
        np.array([s.top_p for s in samplings], dtype=np.float64),
        np.array([seed_word(seed) for seed in seeds], dtype=np.uint64),
        np.array(positions),
    )


def many(sampling: Sampling, count: int, first_seed: int = 0) -> Draw:
    """One draw from LOGITS for each of `count` seeds."""
    settings = rows([sampling] * count, list(range(first_seed, first_seed + count)), [0] * count)
    return draw(np.tile(np.array(LOGITS, dtype=np.float32), (count, 1)), settings)


def slow_uniform(seed: int, position: int) -> float:
    """Splitmix64 in Python integers."""
    mask, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mixed(word: int) -> int:
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
        return word ^ (word >> 31)

    return (mixed((mixed((seed + golden) & mask) + (position + 1) * golden) & mask) >> 16) / 2.0**48


@given(st.integers(-(2**70), 2**70), st.integers(0, 2**20))
def test_uniform_is_splitmix64(seed: int, position: int) -> None:
    word = seed_word(seed)
    value = uniform(np.array([word], dtype=np.uint64), np.array([position]))[0]
    assert value == slow_uniform(word, position)
    assert 0 <= value < 1


def test_uniform_numbers_are_even_and_unrelated() -> None:
    seed, position = np.divmod(np.arange(40_000), 200)
    values = uniform(seed.astype(np.uint64), position)
    counts = np.bincount((values * 20).astype(int), minlength=20)
    assert float(((counts - 2000.0) ** 2 / 2000).sum()) < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    table = values.reshape(200, 200) - 0.5
    assert abs(float((table[:, 1:] * table[:, :-1]).mean())) < 12 * 4e-4  # next position; sd of the mean is 4.2e-4
    assert abs(float((table[1:] * table[:-1]).mean())) < 12 * 4e-4  # next seed


CUTS = [
    Sampling(), Sampling(temperature=0.6), Sampling(temperature=1.7), Sampling(top_k=3), Sampling(top_k=1),
    Sampling(top_k=99), Sampling(top_p=0.5), Sampling(top_p=1e-9), Sampling(0.7, 5, 0.8), Sampling(1.3, 2, 0.9),
]  # fmt: skip


@pytest.mark.parametrize("sampling", CUTS)
def test_frequencies_follow_the_distribution(sampling: Sampling) -> None:
    count, expected = 20_000, oracle_distribution(LOGITS, sampling)
    drawn = np.bincount(many(sampling, count).tokens, minlength=len(LOGITS))
    assert all(drawn[token] == 0 for token in range(len(LOGITS)) if token not in expected)
    chi = sum((drawn[token] - count * p) ** 2 / (count * p) for token, p in expected.items())
    assert chi < 24.4  # 7 degrees of freedom at most, p = 0.001


@pytest.mark.parametrize("sampling", CUTS)
def test_logprobs_and_support_are_those_of_the_distribution(sampling: Sampling) -> None:
    result, expected = many(sampling, 50), oracle_distribution(LOGITS, sampling)
    cut = 0 < sampling.top_k < len(LOGITS) or sampling.top_p < 1
    for row, token in enumerate(result.tokens.tolist()):
        assert result.behaviour_logprobs[row] == pytest.approx(math.log(expected[token]), abs=1e-6)
        if cut:
            assert result.support is not None
            kept = result.support[row]
            assert kept is not None
            assert set(kept.tolist()) == set(expected)
    assert (result.support is not None) == cut


def test_greedy_rows_ignore_seed_and_cut_and_keep_the_whole_logprob() -> None:
    result = many(Sampling(temperature=0.0, top_k=2, top_p=0.1), 20)
    assert set(result.tokens.tolist()) == {2}
    assert result.behaviour_logprobs[0] == pytest.approx(float(torch.tensor(LOGITS).log_softmax(0)[2]), abs=1e-6)
    assert result.support is None


def test_ties_keep_the_lower_ids() -> None:
    result = draw(np.zeros((1, 9), np.float32), rows([Sampling(top_k=4)], [1], [0]))
    assert result.support is not None
    (kept,) = result.support
    assert kept is not None
    assert kept.tolist() == [0, 1, 2, 3]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([*CUTS, Sampling(temperature=0.0)]), st.integers(0, 9)), min_size=1, max_size=6)
)
def test_a_row_does_not_see_its_neighbours(picked: list[tuple[Sampling, int]]) -> None:
    logits = np.tile(np.array(LOGITS, np.float32), (len(picked), 1))
    samplings = [sampling for sampling, _ in picked]
    together = draw(logits, rows(samplings, [seed for _, seed in picked], list(range(len(picked)))))
    for i, (sampling, seed) in enumerate(picked):
        alone = draw(logits[:1], rows([sampling], [seed], [i]))
        assert alone.tokens[0] == together.tokens[i]
        assert alone.behaviour_logprobs[0] == together.behaviour_logprobs[i]
        ours = None if together.support is None else together.support[i]
        theirs = None if alone.support is None else alone.support[0]
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_k=2), Sampling(temperature=0.0)])
def test_rows_that_are_not_finite_are_told_apart(bad: float, sampling: Sampling) -> None:
    logits = np.tile(np.array(LOGITS, np.float32), (3, 1))
    logits[1, 4] = bad
    result = draw(logits, rows([sampling] * 3, [1, 2, 3], [0, 0, 0]))
    assert result.finite.tolist() == [True, False, True]


def test_a_token_without_probability_is_never_drawn() -> None:
    """Also where the uniform number is next to 1 and the last tokens weigh nothing."""
    logits = np.full((20_000, 6), -200.0, np.float32)
    logits[:, 1:3] = 0.0
    result = draw(logits, rows([Sampling()] * 20_000, list(range(20_000)), [0] * 20_000))
    assert set(result.tokens.tolist()) == {1, 2}
