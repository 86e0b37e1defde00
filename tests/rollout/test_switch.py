"""Switching a response to another version: its spans, and what their log-probs are those of."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from offbeat.errors import EngineError
from offbeat.ports import Completion, Request, Sampling
from offbeat.rollout.engine import Engine
from tests.rollout.test_engine import FAMILY, drain, engine_with, run, some
from tests.rollout.tiny import built

REQUESTS = some(6, limit=40)
IDS = tuple(request.request_id for request in REQUESTS)


def switched(keep_cache: bool, after: int, slots: int = 4, prefill_tokens: int = 4096) -> dict[int, Completion]:
    """All requests begin under version 0 and go on under 1 after some steps; fewer slots than requests."""
    engine = engine_with(0, 1, slots=slots, prefill_tokens=prefill_tokens)
    for request in REQUESTS:
        engine.submit(request)
    done = {completion.request_id: completion for _ in range(after) for completion in engine.step()}
    engine.switch(IDS, 1, keep_cache)
    engine.unload(0)
    return done | drain(engine)


@pytest.mark.parametrize("keep_cache", [True, False])
def test_versions_come_in_order_and_no_token_is_lost(keep_cache: bool) -> None:
    answers = switched(keep_cache, after=7)
    plain = run(engine_with(0), REQUESTS)
    assert sorted(answers) == sorted(IDS)
    kinds = {tuple(span.version for span in answer.spans) for answer in answers.values()}
    assert (0, 1) in kinds
    assert (1,) in kinds, "a queued request starts under the new version"
    for request_id, answer in answers.items():
        first = answer.spans[0]
        if first.version == 0:
            assert first.token_ids == plain[request_id].token_ids[: len(first.token_ids)]
        assert all(len(span.token_ids) == len(span.behaviour_logprobs) > 0 for span in answer.spans)


@pytest.mark.parametrize("prefill_tokens", [4096, 8])
def test_after_a_prefill_each_span_is_its_own_versions(prefill_tokens: int) -> None:
    scorer = engine_with(0, 1)
    for request_id, answer in switched(False, after=7, prefill_tokens=prefill_tokens).items():
        before = REQUESTS[request_id].prompt_ids
        for span in answer.spans:
            again = scorer.score(span.version, before, span.token_ids)
            assert list(span.behaviour_logprobs) == again
            before += span.token_ids


def test_over_a_kept_cache_a_span_is_its_versions_over_older_keys_and_values() -> None:
    """Against `transformers`: version 0 fills the cache, version 1 goes on over it."""
    two_spans = [answer for answer in switched(True, after=7).values() if len(answer.spans) == 2]
    assert two_spans
    for answer in two_spans:
        old, new = answer.spans
        known = [*REQUESTS[answer.request_id].prompt_ids, *old.token_ids]
        cache = DynamicCache()
        with torch.inference_mode():
            built(FAMILY, 0)[0](torch.tensor([known[:-1]]), past_key_values=cache)
            fed = torch.tensor([[known[-1], *new.token_ids[:-1]]])
            logits = built(FAMILY, 1)[0](fed, past_key_values=cache).logits[0]
        expected = torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(new.token_ids)[:, None])[:, 0]
        assert new.behaviour_logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_stale_cache_is_never_lent_to_a_sibling() -> None:
    """After a switch over the cache, a new request with the same prompt must compute its own."""
    prompt = tuple(range(3, 12))
    engine = engine_with(0, 1)
    engine.submit(Request(1, 0, prompt, 5, 30))
    engine.step()
    engine.switch((1,), 1, keep_cache=True)
    late = Request(2, 1, prompt, 6, 12)
    engine.submit(late)
    answer = drain(engine)[2]
    assert list(answer.span.behaviour_logprobs) == engine.score(1, prompt, answer.token_ids)


def test_a_suspended_request_stands_still_and_goes_on_as_if_nothing_had_been() -> None:
    engine = engine_with(0, slots=3)
    for request in REQUESTS[:3]:
        engine.submit(request)
    engine.step()
    engine.suspend((IDS[0], 999))
    held = engine.decoded()[IDS[0]]
    others = {completion.request_id for _ in range(60) for completion in engine.step()}
    assert others == {IDS[1], IDS[2]}
    assert engine.decoded() == {IDS[0]: held}
    engine.switch((IDS[0],), 0, keep_cache=True)
    plain = run(engine_with(0), REQUESTS[:1])
    answer = drain(engine)[IDS[0]]
    assert answer.span.token_ids == plain[IDS[0]].span.token_ids


def test_supports_are_cut_at_the_same_places() -> None:
    engine = engine_with(0, 1)
    engine.submit(Request(1, 0, (3, 4, 5), 7, 40, Sampling(top_k=4)))
    for _ in range(5):
        engine.step()
    engine.switch((1,), 1, keep_cache=False)
    answer = drain(engine)[1]
    for span in answer.spans:
        assert span.behaviour_support is not None
        assert [token in kept for token, kept in zip(span.token_ids, span.behaviour_support, strict=True)] == [
            True
        ] * len(span.token_ids)


def test_an_unknown_version_is_refused() -> None:
    engine: Engine = engine_with(0)
    engine.submit(REQUESTS[0])
    with pytest.raises(EngineError, match="version 5 is not loaded"):
        engine.switch((REQUESTS[0].request_id,), 5, keep_cache=True)


def test_a_suspended_request_does_not_leave_the_queue() -> None:
    """A budget of prompt tokens may keep it queued while others run; suspended, it must not start."""
    engine = engine_with(0, slots=4, prefill_tokens=1)
    first, second = Request(1, 0, (3, 4, 5), 7, 30), Request(2, 0, (6, 7, 8), 8, 30)
    engine.submit(first)
    engine.submit(second)
    engine.suspend((2,))
    for _ in range(3):
        engine.step()
    assert engine.decoded()[2] == 0
    engine.switch((2,), 0, keep_cache=True)
    assert set(drain(engine)) | {1} == {1, 2}
