"""A batch is checked in full, split by whole groups, and laid out with every token where it belongs."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offbeat.errors import InvariantError
from offbeat.learner.batches import Sample, mini_batches, sample_of, samples_of
from offbeat.learner.layout import FORWARD_TOKENS, ROW_TOKENS, Layout, MicroBatch, micro_batches
from offbeat.ports import Sampling
from offbeat.records import Batch, Group, Prompt, Span, Trajectory

GOOD = Trajectory(5, 0, (Span(3, (4, 5), (-1.0, -2.0)), Span(4, (6,), (-0.5,))), "stop")


def with_span(**changes: Any) -> Trajectory:
    return Trajectory(5, 0, (msgspec.structs.replace(GOOD.spans[0], **changes),), "stop")


def group(number: int, rewards: tuple[float, ...] = (0.0, 1.0), prompt: tuple[int, ...] = (1, 2)) -> Group:
    return Group(number, Prompt(number, "t", "", "", prompt), (GOOD,) * len(rewards), rewards)


def test_spans_are_joined_in_order() -> None:
    sample = sample_of(GOOD, (1, 2), Sampling(), 10)
    assert (sample.response_ids, sample.behaviour_logprobs, sample.supports) == ((4, 5, 6), (-1.0, -2.0, -0.5), None)


def test_a_span_without_cut_beside_one_with_has_no_support_at_its_positions() -> None:
    cut = msgspec.structs.replace(GOOD.spans[0], behaviour_support=((4, 1), (5,)))
    sample = sample_of(Trajectory(5, 0, (cut, GOOD.spans[1]), "stop"), (1,), Sampling(), 10)
    assert sample.supports == ((4, 1), (5,), None)


@pytest.mark.parametrize(
    ("trajectory", "message"),
    [
        (with_span(behaviour_logprobs=()), "2 tokens but 0 behaviour log-probs"),
        (with_span(behaviour_logprobs=(-1.0,)), "2 tokens but 1 behaviour log-probs"),
        (with_span(behaviour_logprobs=(-1.0, math.nan)), "position 1 is not finite"),
        (with_span(behaviour_logprobs=(-math.inf, -1.0)), "position 0 is not finite"),
        (with_span(behaviour_logprobs=(-1.0, 0.5)), "above 0"),
        (with_span(token_ids=(4, 10)), "token id 10 is outside"),
        (with_span(token_ids=(-1, 4)), "token id -1 is outside"),
        (with_span(behaviour_support=((4,),)), "2 tokens but 1 behaviour supports"),
        (with_span(behaviour_support=((4,), (6, 7))), "token 5 at position 1 is not in its behaviour support"),
        (with_span(behaviour_support=((4, 11), (5,))), "token id 11 is outside"),
        (Trajectory(5, 0, (), "stop"), "no response tokens"),
    ],
)
def test_malformed_trajectories_are_named_never_padded(trajectory: Trajectory, message: str) -> None:
    with pytest.raises(InvariantError, match=f"trajectory 5.*{message}"):
        sample_of(trajectory, (1, 2), Sampling(), 10)


@pytest.mark.parametrize("sampling", [Sampling(top_k=3), Sampling(top_p=0.9)])
def test_cut_sampling_needs_supports(sampling: Sampling) -> None:
    with pytest.raises(InvariantError, match="carries no behaviour support"):
        sample_of(GOOD, (1, 2), sampling, 10)
    sample_of(GOOD, (1, 2), Sampling(top_k=10), 10)  # keeps the whole vocabulary of 10


def test_malformed_groups_are_named() -> None:
    with pytest.raises(InvariantError, match="2 trajectories but 1 rewards"):
        samples_of(msgspec.structs.replace(group(7), rewards=(1.0,)), Sampling(), True, 10)
    with pytest.raises(InvariantError, match="group 7: prompt 7 carries no token ids"):
        samples_of(group(7, prompt=()), Sampling(), True, 10)
    with pytest.raises(InvariantError, match="group 7, prompt 7: token id 12"):
        samples_of(group(7, prompt=(12,)), Sampling(), True, 10)
    with pytest.raises(InvariantError, match="not finite"):
        samples_of(group(7, rewards=(math.nan, 1.0)), Sampling(), True, 10)


@given(st.permutations(range(7)), st.integers(1, 7))
def test_mini_batches_are_whole_groups_in_order_of_group_id(order: list[int], updates: int) -> None:
    parts = mini_batches(Batch(0, tuple(group(number) for number in order)), updates)
    assert [g.group_id for part in parts for g in part] == list(range(7))
    assert len(parts) == updates
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_impossible_mini_batches_are_refused() -> None:
    with pytest.raises(InvariantError, match="group 1 occurs twice"):
        mini_batches(Batch(0, (group(1), group(1))), 1)
    with pytest.raises(InvariantError, match="1 groups cannot make 2 updates"):
        mini_batches(Batch(0, (group(1),)), 2)


@st.composite
def sample_lists(draw: st.DrawFn) -> list[Sample]:
    samples = []
    for number in range(draw(st.integers(1, 4))):
        prompt = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=12)))
        for _ in range(draw(st.integers(1, 5))):
            tokens = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=30)))
            logprobs = tuple(-float(position + 1) for position in range(len(tokens)))
            samples.append(Sample(number, prompt, tokens, logprobs, None, draw(st.floats(-2, 2, width=32))))
    return samples


LAYOUTS: list[Layout] = ["plain", "shared", "tree"]


def visible_context(batch: MicroBatch, flat: int) -> tuple[int, ...]:
    """Token ids that the position sees, in order of their position ids."""
    if (tree := batch.tree) is not None:
        rows = [*range(tree.root[flat], tree.root[flat] + tree.stem[flat]), *range(tree.begin[flat], flat + 1)]
        assert tree.positions[rows].tolist() == list(range(len(rows)))
        return tuple(tree.tokens[rows].tolist())
    row, column = divmod(flat, batch.input_ids.shape[1])
    seen = list(range(column + 1))
    if batch.attention_bias is None or batch.position_ids is None:
        return tuple(batch.input_ids[row, seen].tolist())
    seen = [key for key in range(batch.input_ids.shape[1]) if batch.attention_bias[row, 0, column, key] == 0]
    assert batch.position_ids[row, seen].tolist() == list(range(len(seen)))
    return tuple(batch.input_ids[row, seen].tolist())


@given(sample_lists(), st.integers(1, 120), st.sampled_from(LAYOUTS))
def test_every_token_is_predicted_once_from_exactly_its_own_past(
    samples: list[Sample], limit: int, layout: Layout
) -> None:
    found = []
    for batch in micro_batches(samples, limit, layout):
        lengths = batch.response_mask.sum(1).tolist()
        assert batch.padded_tokens <= limit or len(lengths) == 1
        assert batch.response_mask.tolist() == [[i < n for i in range(batch.response_mask.shape[1])] for n in lengths]
        at = 0
        for index, length in enumerate(lengths):
            contexts = [visible_context(batch, flat) for flat in batch.predicting[at : at + length].tolist()]
            tokens = tuple(batch.response_ids[at : at + length].tolist())
            for position, context in enumerate(contexts):
                assert context == contexts[0] + tokens[:position]
            logprobs = tuple(batch.behaviour_logprobs[index, :length].tolist())
            found.append((contexts[0], tokens, logprobs, batch.advantages[index].item()))
            at += length
        assert at == len(batch.predicting)
    expected = [(s.prompt_ids, s.response_ids, s.behaviour_logprobs, s.advantage) for s in samples]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_heavy_tails_cost_little_padding(layout: Layout) -> None:
    rng = random.Random(3)
    samples = []
    for number in range(128):
        length = min(200, int(4 * rng.random() ** -0.8))
        samples.append(Sample(number // 8, (1,) * (5 + 3 * (number // 8)), (2,) * length, (-1.0,) * length, None, 1.0))
    batches = micro_batches(samples, 8192, layout)
    padded = sum(batch.padded_tokens for batch in batches)
    prompts = {s.group_id: len(s.prompt_ids) for s in samples}
    responses = sum(len(s.response_ids) for s in samples)
    plain = sum(len(s.prompt_ids) for s in samples) + responses
    needed = sum(prompts.values()) + responses if layout != "plain" else plain
    assert padded <= 1.35 * needed
    assert len(batches) * FORWARD_TOKENS <= 0.35 * needed
    if layout == "tree":
        assert padded == needed - len(samples), "no padding, and no last token of a response"
    else:
        assert all(batch.input_ids.shape[1] <= ROW_TOKENS for batch in batches)


def test_supports_name_the_kept_ids_of_each_cut_position() -> None:
    samples = [
        Sample(0, (1,), (4, 5), (-1.0, -1.0), ((4, 7), None), 1.0),
        Sample(0, (1,), (6,), (-1.0,), None, -1.0),
    ]
    (batch,) = micro_batches(samples, 100, "shared")
    assert batch.kept is not None
    by_token = dict(zip(batch.response_ids.tolist(), batch.kept.cut.tolist(), strict=True))
    assert by_token == {4: True, 5: False, 6: False}
    position = batch.response_ids.tolist().index(4)
    assert torch.equal(batch.kept.positions, torch.tensor([position, position]))
    assert batch.kept.token_ids.tolist() == [4, 7]


def test_a_loss_mask_of_another_length_is_named() -> None:
    with pytest.raises(InvariantError, match=r"trajectory 5.*2 tokens but a loss mask of 1"):
        sample_of(with_span(loss_mask=(True,)), (1,), Sampling(), 10)
    with pytest.raises(InvariantError, match=r"trajectory 5: no response tokens"):
        sample_of(with_span(loss_mask=(False, False)), (1,), Sampling(), 10)


def test_a_span_without_loss_mask_beside_one_with_was_sampled() -> None:
    masked = msgspec.structs.replace(GOOD.spans[0], loss_mask=(True, False))
    sample = sample_of(Trajectory(5, 0, (masked, GOOD.spans[1]), "stop"), (1,), Sampling(), 10)
    assert sample.loss_mask == (True, False, True)
    assert sample.sampled == 2
    assert sample.of_sampled(sample.response_ids) == (4, 6)
