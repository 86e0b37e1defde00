"""A request taken out of an engine goes on bit for bit wherever it is attached: tokens, log-probs, spans, ending."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import EngineError
from offbeat.ports import Completion, Parcel, Request, Sampling
from offbeat.records import Span
from offbeat.rollout.engine import Engine
from tests.rollout.test_engine import drain, engine_with, run, some
from tests.rollout.tiny import FAMILIES, VOCAB, built, weights

SAMPLINGS = (Sampling(), Sampling(temperature=0.0), Sampling(top_k=4), Sampling(0.8, 6, 0.9))


def engine_of(family: str, slots: int = 4, kv_tokens: int | None = None) -> Engine:
    engine = Engine(built(family)[1], slots=slots, context=80, kv_tokens=kv_tokens)
    for version in (0, 1):
        engine.load(version, weights(family, version))
    return engine


def varied(count: int, limit: int = 60) -> list[Request]:
    """Both versions, every sampling, prompts of 1 to 37 tokens: more than one block, some shared."""
    return [
        Request(i, i % 2, tuple((3 * (i // 2) + 5 * k) % VOCAB for k in range(1 + 9 * (i // 2) % 37)), 70 + i, limit,
                SAMPLINGS[i % len(SAMPLINGS)])
        for i in range(count)
    ]  # fmt: skip


def same(answer: Completion, undisturbed: Completion) -> None:
    assert answer.finish_reason == undisturbed.finish_reason
    assert [span.version for span in answer.spans] == [span.version for span in undisturbed.spans]
    for span, other in zip(answer.spans, undisturbed.spans, strict=True):
        assert span.token_ids == other.token_ids
        assert span.behaviour_support == other.behaviour_support
        assert span.behaviour_logprobs == other.behaviour_logprobs


def posted(parcels: Sequence[Parcel]) -> list[Parcel]:
    """Through msgpack, as between processes."""
    sent = [msgspec.msgpack.decode(msgspec.msgpack.encode(parcel), type=Parcel) for parcel in parcels]
    assert sent == list(parcels)
    return sent


def moved(
    make: Callable[[], Engine], requests: list[Request], cuts: Sequence[int], keep_cache: bool
) -> dict[int, Completion]:
    """All unfinished requests move to a fresh engine after so many steps, again and again."""
    engine, done = make(), dict[int, Completion]()
    for request in requests:
        engine.submit(request)
    for steps in cuts:
        done |= {answer.request_id: answer for _ in range(steps) for answer in engine.step()}
        before, ids = engine.decoded(), list(engine.decoded())
        parcels = posted(engine.detach(ids, keep_cache))
        assert [parcel.request.request_id for parcel in parcels] == ids
        assert {parcel.request.request_id: len(parcel.token_ids) for parcel in parcels} == before
        assert engine.decoded() == {}
        assert engine.cached_tokens == 0
        engine = make()
        for parcel in reversed(parcels):
            engine.attach(parcel)
        assert engine.decoded() == before
    return done | drain(engine)


@pytest.mark.parametrize("keep_cache", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_changes_at_any_cut_of_any_family(family: str, keep_cache: bool) -> None:
    requests = varied(8)
    undisturbed = run(engine_of(family), requests)
    assert any(len(answer.token_ids) > 33 for answer in undisturbed.values())
    for cuts in ([0], [1], [2, 1], [13], [5, 30]):
        answers = moved(lambda: engine_of(family), requests, cuts, keep_cache)
        assert sorted(answers) == sorted(undisturbed)
        for request_id, answer in answers.items():
            same(answer, undisturbed[request_id])


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    slots=st.integers(1, 4),
    keep_cache=st.booleans(),
    kv_tokens=st.sampled_from([None, 96, 130]),
)
def test_nothing_changes_wherever_and_however_often(
    cuts: list[int], slots: int, keep_cache: bool, kv_tokens: int | None
) -> None:
    requests = varied(9, limit=40)
    undisturbed = run(engine_of("qwen3"), requests)
    answers = moved(lambda: engine_of("qwen3", slots, kv_tokens), requests, cuts, keep_cache)
    assert sorted(answers) == sorted(undisturbed)
    for request_id, answer in answers.items():
        same(answer, undisturbed[request_id])


@pytest.mark.parametrize("kept_in_switch", [True, False])
@pytest.mark.parametrize("cut", [0, 1, 6])
def test_spans_of_several_versions_move_along(kept_in_switch: bool, cut: int) -> None:
    """Under versions 0, 1 and 2 in turn; moved `cut` steps after each switch, keys and values of old ones included."""
    requests = some(6, limit=40)

    def journey(move: bool) -> dict[int, Completion]:
        engine, done = engine_with(0, 1, 2, slots=6), dict[int, Completion]()
        for request in requests:
            engine.submit(request)
        for version in (1, 2):
            done |= {answer.request_id: answer for _ in range(5) for answer in engine.step()}
            engine.switch(tuple(engine.decoded()), version, kept_in_switch)
            done |= {answer.request_id: answer for _ in range(cut) for answer in engine.step()}
            if move:
                parcels = posted(engine.detach(tuple(engine.decoded())))
                engine = engine_with(0, 1, 2, slots=5)
                for parcel in parcels:
                    engine.attach(parcel)
        return done | drain(engine)

    undisturbed, answers = journey(move=False), journey(move=True)
    assert max(len(answer.spans) for answer in answers.values()) == 3
    for request_id, answer in answers.items():
        same(answer, undisturbed[request_id])


def test_switched_away_and_back_within_a_step_is_one_span() -> None:
    engine = engine_with(0, 1)
    (request,) = some(1, limit=30)
    engine.submit(request)
    engine.step()
    engine.switch([0], 1, keep_cache=True)
    engine.switch([0], 0, keep_cache=True)
    same(drain(engine)[0], run(engine_with(0), [request])[0])


def test_an_attached_request_is_the_next_to_run() -> None:
    engine, other = engine_with(0, slots=1), engine_with(0, slots=2)
    first, second, third, queued = (Request(i, 0, (9, i), i, 40, Sampling(temperature=0.0)) for i in range(4))
    for request in (first, second):
        other.submit(request)
    other.step()
    engine.submit(third)
    engine.step()
    engine.submit(queued)
    for parcel in reversed(other.detach([0, 1])):
        engine.attach(parcel)
    order = [answer.request_id for _ in range(200) for answer in engine.step()]
    assert order == [2, 0, 1, 3]


@pytest.mark.parametrize("keep_cache", [True, False])
def test_siblings_of_an_attached_request_change_nothing(keep_cache: bool) -> None:
    """Same prompt, same version: one that has tokens takes no copy of the prompt, and lends none it may not have."""
    family = [Request(i, 0, tuple(range(8, 20)), i, 40, Sampling(temperature=0.0)) for i in range(3)]
    undisturbed = run(engine_with(0), family)
    engine, other = engine_with(0), engine_with(0)
    engine.submit(family[0])
    other.submit(family[1])
    for _ in range(3):
        engine.step()
        other.step()
    engine.attach(other.detach([1], keep_cache)[0])
    engine.step()
    engine.submit(family[2])
    for request_id, answer in drain(engine).items():
        same(answer, undisturbed[request_id])


def test_suspended_ones_move_and_run() -> None:
    request = Request(1, 0, (9, 8), 3, 20)
    engine, other = engine_with(0), engine_with(0)
    engine.submit(request)
    engine.step()
    engine.suspend([1])
    other.attach(engine.detach([1])[0])
    same(drain(other)[1], run(engine_with(0), [request])[1])


def test_unload_is_refused_while_an_attached_request_needs_the_version() -> None:
    engine, other = engine_with(0, 1), engine_with(0)
    other.submit(Request(1, 0, (9, 8), 3, 20))
    other.step()
    (parcel,) = other.detach([5, 1, 5, 1])
    other.unload(0)
    engine.attach(parcel)
    with pytest.raises(EngineError, match="first 1"):
        engine.unload(0)
    engine.switch([1], 1, keep_cache=True)
    engine.unload(0)
    assert [span.version for span in drain(engine)[1].spans] == [0, 1]


def parcel_of(**changes: object) -> Parcel:
    """A good one: 3 tokens of prompt, 2 of response, 4 cached; 2 layers, 2 heads of 12 features."""
    request = Request(1, 0, (9, 8, 4), 3, 20)
    good = Parcel(request, (Span(0, (5, 6), (-1.0, -2.0)),), 4, bytes(2 * 2 * 4 * 2 * 12 * 4))
    return msgspec.structs.replace(good, **changes)


@pytest.mark.parametrize(
    ("parcel", "named"),
    [
        (parcel_of(request=Request(1, 4, (9, 8, 4), 3, 20)), "version 4 is not loaded"),
        (parcel_of(request=Request(7, 0, (9, 8, 4), 3, 20)), "already here"),
        (parcel_of(request=Request(1, 0, (9, 8, VOCAB), 3, 20)), "vocabulary"),
        (parcel_of(request=Request(1, 0, (9,) * 62, 3, 20)), "nothing is left"),
        (parcel_of(request=Request(1, 0, (9,) * 64, 3, 20)), "leaves no room"),
        (parcel_of(request=Request(1, 0, (9, 8, 4), 3, 2)), "nothing is left"),
        (parcel_of(request=Request(1, 0, (9, 8, 4), 3, 20, Sampling(top_k=2))), "supports"),
        (parcel_of(spans=(Span(0, (5, 7), (-1.0, -2.0)),)), "nothing is left"),
        (parcel_of(spans=(Span(0, (5, -1), (-1.0, -2.0)),)), "response: a token id"),
        (parcel_of(spans=(Span(0, (5, 6), (-1.0,)),)), "2 tokens, 1 log-probs"),
        (parcel_of(spans=(Span(0, (5, 6), (-1.0, -2.0), ((5,), (6,))),)), "supports"),
        (parcel_of(cache=bytes(1535)), "does not fit the model"),
        (parcel_of(cached=3), "does not fit the model"),
        (parcel_of(cached=3, cache=bytes(2 * 2 * 3 * 2 * 12 * 4)), "does not fit the model"),
        (parcel_of(cached=0, cache=b""), "does not fit the model"),
        (parcel_of(cache=None), "there is no cache"),
    ],
)
def test_refused_parcels(parcel: Parcel, named: str) -> None:
    engine = engine_with(0)
    engine.submit(Request(7, 0, (9,), 1, 3))
    with pytest.raises(EngineError, match=named):
        engine.attach(parcel)
    assert engine.decoded() == {7: 0}
    engine.attach(parcel_of())
    assert engine.decoded() == {7: 0, 1: 2}
