"""Under a budget of keys and values requests are parked and come back, and every answer is what it would have been."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import EngineError
from offbeat.ports import Completion, Request, Sampling
from offbeat.rollout.engine import Engine, NonFiniteLogits
from offbeat.rollout.kernels import BLOCK
from tests.rollout.test_engine import FAMILY, engine_with, exploding, run, some
from tests.rollout.test_migration import engine_of, same, varied
from tests.rollout.tiny import built, weights


def tight(kv_tokens: int = 96, slots: int = 4, versions: tuple[int, ...] = (0, 1)) -> Engine:
    engine = Engine(built(FAMILY)[1], slots=slots, context=80, kv_tokens=kv_tokens)
    for version in versions:
        engine.load(version, weights(FAMILY, version))
    return engine


def watched(engine: Engine, kv_tokens: int) -> tuple[dict[int, Completion], int]:
    """Every answer, and how often a request was newly parked. In every step somebody advances within the budget."""
    done, parkings, before = dict[int, Completion](), 0, set[int]()
    while tokens := engine.decoded():
        answers = {answer.request_id: answer for answer in engine.step()}
        done |= answers
        assert answers or engine.decoded() != tokens, "nobody advanced"
        assert engine.cached_tokens <= -(-kv_tokens // BLOCK) * BLOCK
        parkings += len(set(engine.parked()) - before)
        before = set(engine.parked())
    assert engine.cached_tokens == 0
    return done, parkings


def as_undisturbed(family: str, engine: Engine, requests: list[Request], kv_tokens: int) -> int:
    """Every request gives the answer of an engine without a budget; how often one was parked on the way."""
    undisturbed = run(engine_of(family), requests)
    for request in requests:
        engine.submit(request)
    answers, parkings = watched(engine, kv_tokens)
    assert sorted(answers) == sorted(undisturbed)
    for request_id, answer in answers.items():
        same(answer, undisturbed[request_id])
    return parkings


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("kv_tokens", [96, 128, 161, 100_000])
def test_a_tight_budget_changes_nothing_but_the_time(family: str, kv_tokens: int) -> None:
    requests = varied(24)
    parkings = as_undisturbed(family, engine_of(family, kv_tokens=kv_tokens), requests, kv_tokens)
    assert (parkings > 0) == (kv_tokens < 100_000), f"{parkings} parkings"


@settings(max_examples=25, deadline=None)
@given(
    slots=st.integers(1, 6),
    kv_tokens=st.integers(65, 300),
    prefill_tokens=st.sampled_from([1, 40, 4096]),
    first=st.integers(0, 50),
    limit=st.integers(1, 60),
)
def test_any_budget(slots: int, kv_tokens: int, prefill_tokens: int, first: int, limit: int) -> None:
    requests = varied(first + 8, limit)[first:]
    engine = Engine(built(FAMILY)[1], slots=slots, context=80, prefill_tokens=prefill_tokens, kv_tokens=kv_tokens)
    for version in (0, 1):
        engine.load(version, weights(FAMILY, version))
    as_undisturbed(FAMILY, engine, requests, kv_tokens)


def greedy_long(version: int, count: int, first: int) -> list[Request]:
    """Requests whose greedy answers run to 50 tokens and more, so that each needs two blocks."""
    found = []
    for i in range(400):
        request = Request(first + i, version, (i % 41, i // 41, 9), i, 60, Sampling(temperature=0.0))
        if len(run(engine_of(FAMILY), [request])[request.request_id].token_ids) >= 50:
            found.append(request)
            if len(found) == count:
                return found
    raise AssertionError("no long answers")


@pytest.fixture(scope="module")
def old_and_new() -> tuple[list[Request], list[Request]]:
    return greedy_long(0, 2, 0), greedy_long(1, 2, 1000)


def crowded(old_and_new: tuple[list[Request], list[Request]], blocks: int = 5) -> Engine:
    """Four requests of 3 + 29 tokens in these blocks, submitted newest first; the next step but one needs two each."""
    engine = tight(32 * blocks)
    for request in [*reversed(old_and_new[1]), *reversed(old_and_new[0])]:
        engine.submit(request)
    for _ in range(29):
        assert engine.step() == []
    assert engine.parked() == ()
    return engine


def test_older_versions_and_earlier_requests_stay(old_and_new: tuple[list[Request], list[Request]]) -> None:
    new = [request.request_id for request in old_and_new[1]]
    engine = crowded(old_and_new)
    parked = list[int]()
    for _ in range(10):
        engine.step()
        parked += [i for i in engine.parked() if i not in parked]
    assert set(parked) == {new[0], new[1]}, "the newer version makes way"
    assert engine.parked() == (new[1], new[0]), "submitted in this order"


def test_parked_ones_come_back_before_a_queued_one_begins(old_and_new: tuple[list[Request], list[Request]]) -> None:
    """Also where the queued one is of an older version and there is room for it sooner."""
    engine = crowded(old_and_new, blocks=6)
    for _ in range(3):
        engine.step()
    assert len(engine.parked()) == 1
    late = Request(5000, 0, (9,), 1, 3)
    engine.submit(late)
    engine.abort((old_and_new[0][0].request_id,))
    begun, back = 0, 0
    while engine.decoded():
        parked = engine.parked()
        finished = {done.request_id for done in engine.step()}
        back += len(set(parked) - set(engine.parked()))
        if late.request_id in finished or engine.decoded().get(late.request_id, 0):
            begun += 1
            assert not engine.parked(), "a queued request went before one that was parked"
    assert begun
    assert back == 1


def test_suspended_ones_are_parked_first_and_stay_parked(old_and_new: tuple[list[Request], list[Request]]) -> None:
    engine = crowded(old_and_new)
    foremost = old_and_new[0][1].request_id
    engine.suspend([foremost])
    for _ in range(5):
        engine.step()
    assert foremost in engine.parked()
    held = engine.decoded()[foremost]
    rest: dict[int, Completion] = {}
    for _ in range(200):
        rest |= {answer.request_id: answer for answer in engine.step()}
    assert len(rest) == 3
    assert engine.decoded() == {foremost: held}
    assert engine.parked() == (foremost,)
    engine.switch([foremost], 0, keep_cache=True)
    answers, _ = watched(engine, 160)
    requests = [*old_and_new[0], *old_and_new[1]]
    undisturbed = run(engine_of(FAMILY), requests)
    for request_id, answer in (rest | answers).items():
        same(answer, undisturbed[request_id])


@pytest.mark.parametrize("keep_cache", [True, False])
def test_parked_ones_switch(old_and_new: tuple[list[Request], list[Request]], keep_cache: bool) -> None:
    def journey(engine: Engine) -> dict[int, Completion]:
        for _ in range(4):
            engine.step()
        assert len(engine.parked()) == 2
        counts = engine.decoded()
        engine.switch(tuple(counts), 2, keep_cache)
        answers, _ = watched(engine, 10**6)
        for request_id, answer in answers.items():
            before = len(answer.spans[0].token_ids) if answer.spans[0].version != 2 else 0
            assert before == counts[request_id]
        return answers

    engine = crowded(old_and_new)
    engine.load(2, weights(FAMILY, 2))
    requests = {request.request_id: request for request in [*old_and_new[0], *old_and_new[1]]}
    scorer = engine_with(0, 1, 2, context=80)
    for request_id, answer in journey(engine).items():
        before = requests[request_id].prompt_ids
        for span in answer.spans[: None if not keep_cache else 1]:
            again = scorer.score(span.version, before, span.token_ids)
            assert list(span.behaviour_logprobs) == again
            before += span.token_ids


def test_parked_ones_are_aborted_detached_and_keep_their_version(
    old_and_new: tuple[list[Request], list[Request]],
) -> None:
    engine = crowded(old_and_new)
    for _ in range(4):
        engine.step()
    one, other = engine.parked()
    counts = engine.decoded()
    with pytest.raises(EngineError, match="needed by 2"):
        engine.unload(1)
    engine.abort([one])
    assert engine.parked() == (other,)
    (parcel,) = engine.detach([other, one])
    assert len(parcel.token_ids) == counts[other]
    assert parcel.cache is not None
    engine.unload(1)
    fresh = tight(96)
    fresh.attach(parcel)
    undisturbed = run(engine_of(FAMILY), [*old_and_new[0], *old_and_new[1]])
    answers = watched(engine, 160)[0] | watched(fresh, 96)[0]
    assert sorted(answers) == sorted(undisturbed.keys() - {one})
    for request_id, answer in answers.items():
        same(answer, undisturbed[request_id])


def test_logits_that_are_not_finite_leave_parked_ones_alone(
    old_and_new: tuple[list[Request], list[Request]], tmp_path: Path
) -> None:
    engine = crowded(old_and_new)
    engine.load(3, exploding(tmp_path, "model.norm.weight"))
    for _ in range(4):
        engine.step()
    parked, old = engine.parked(), [request.request_id for request in old_and_new[0]]
    engine.switch(old, 3, keep_cache=True)
    with pytest.raises(NonFiniteLogits) as failed:
        engine.step()
    assert set(failed.value.request_ids) == set(old)
    answers, _ = watched(engine, 160)
    undisturbed = run(engine_of(FAMILY), old_and_new[1])
    assert set(answers) == set(parked) == set(undisturbed)
    for request_id, answer in answers.items():
        same(answer, undisturbed[request_id])


def test_suspended_ones_make_way_where_nobody_else_runs(old_and_new: tuple[list[Request], list[Request]]) -> None:
    """All slots are taken by suspended requests: what waits runs all the same."""
    held, (late, _) = old_and_new
    ids = [request.request_id for request in held]
    engine = tight(96, slots=2)
    for request in held:
        engine.submit(request)
    engine.step()
    assert set(engine.decoded().values()) == {1}
    engine.suspend(ids)
    engine.submit(late)
    answered = {answer.request_id for _ in range(70) for answer in engine.step()}
    assert answered == {late.request_id}
    assert set(engine.parked()) <= set(ids)
    assert engine.parked()
    engine.switch(ids, 0, keep_cache=True)
    answers, _ = watched(engine, 96)
    undisturbed = run(engine_of(FAMILY), held)
    for request_id in ids:
        same(answers[request_id], undisturbed[request_id])


def test_parked_ones_come_back_before_queued_ones_are_admitted(
    old_and_new: tuple[list[Request], list[Request]],
) -> None:
    engine = crowded(old_and_new)
    for _ in range(4):
        engine.step()
    assert len(engine.parked()) == 2
    engine.submit(Request(5, 0, (9,), 5, 2, Sampling(temperature=0.0)))
    while engine.parked():
        assert engine.decoded()[5] == 0, "it fits, but is not its turn"
        engine.step()
    assert 5 in watched(engine, 160)[0]


def test_a_prompt_is_admitted_with_a_block_to_grow_into(old_and_new: tuple[list[Request], list[Request]]) -> None:
    (first, second), _ = old_and_new
    wide = Request(5, 0, tuple(range(8, 41)), 5, 40, Sampling(temperature=0.0))
    for request, begins in ((second, True), (wide, False)):
        engine = tight(96)
        engine.submit(first)
        engine.step()
        engine.submit(request)
        engine.step()
        assert engine.cached_tokens == (64 if begins else 32)
        assert (engine.decoded()[request.request_id] > 0) is begins
    alone = tight(96)
    alone.submit(wide)
    alone.step()
    assert alone.cached_tokens == 64


def test_an_attached_one_counts_as_older(old_and_new: tuple[list[Request], list[Request]]) -> None:
    (first, second), _ = old_and_new
    other, engine = tight(), tight(96)
    other.submit(second)
    other.step()
    engine.submit(first)
    engine.step()
    engine.attach(other.detach([second.request_id])[0])
    seen = set[int]()
    for _ in range(36):
        engine.step()
        seen |= set(engine.parked())
    assert seen == {first.request_id}


def test_an_id_that_is_free_again_is_not_suspended() -> None:
    engine, request = tight(), Request(5, 0, (9,), 5, 2)
    engine.submit(request)
    engine.suspend([5])
    engine.abort([5])
    assert sorted(run(engine, [request])) == [5]


def test_without_a_budget_nothing_is_parked() -> None:
    engine = engine_with(0, slots=4)
    for request in some(12):
        engine.submit(request)
    while engine.decoded():
        engine.step()
        assert engine.parked() == ()


@pytest.mark.parametrize(("kv_tokens", "fits"), [(0, False), (64, False), (65, True), (96, True)])
def test_a_budget_must_hold_one_response(kv_tokens: int, fits: bool) -> None:
    if fits:
        tight(kv_tokens)
    else:
        with pytest.raises(EngineError, match="at least 96"):
            tight(kv_tokens)
