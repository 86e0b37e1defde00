"""The laws of the `Generator` port about requests that move: taken out of one generator, attached to another."""

from __future__ import annotations

from offbeat.errors import EngineError
from offbeat.ports import Completion, Parcel, Request, Sampling
from offbeat.testing.asking import answered, finish, refuses
from offbeat.testing.generator_laws import GeneratorCase, apart


def detached_go_on_elsewhere(case: GeneratorCase) -> None:
    """Taken out after some steps and attached to another generator, with its cache or without, a request gives the
    answer that it gives undisturbed; unknown ids are ignored, and nothing is left behind."""
    law, cut = "detached_go_on_elsewhere", Sampling(temperature=0.9, top_k=7)
    requests = case.requests(6) + case.requests(4, first_id=6, sampling=cut)
    undisturbed = finish(case.loaded(), requests, law)
    for steps, keep_cache in ((0, True), (1, True), (1, False), (4, True), (4, False)):
        source, target = case.loaded(), case.loaded()
        for request in requests:
            source.submit(request)
        done = {answer.request_id: answer for _ in range(steps) for answer in source.step()}
        before = source.decoded()
        parcels = source.detach([*before, 10**6], keep_cache)
        names = [parcel.request.request_id for parcel in parcels]
        assert names == list(before), f"{law}: asked for {list(before)}, {names} come"
        assert not source.decoded(), f"{law}: detached requests {sorted(source.decoded())} are still held"
        assert source.cached_tokens == 0, f"{law}: {source.cached_tokens} tokens of cache are left behind"
        assert keep_cache or not any(parcel.cache for parcel in parcels), f"{law}: an unwanted cache is taken along"
        for parcel in reversed(parcels):
            target.attach(parcel)
        assert target.decoded() == before, f"{law}: attached requests count {target.decoded()}, before {before}"
        done |= answered(target, [parcel.request for parcel in parcels], law)
        for request_id, answer in undisturbed.items():
            _same_answer(done[request_id], answer, case.tolerance, f"{law}: request {request_id} moved at {steps}")


def _same_answer(answer: Completion, undisturbed: Completion, tolerance: float, name: str) -> None:
    assert answer.finish_reason == undisturbed.finish_reason, f"{name} ends by {answer.finish_reason!r}"
    assert answer.span.token_ids == undisturbed.span.token_ids, f"{name} gives other tokens"
    assert answer.span.behaviour_support == undisturbed.span.behaviour_support, f"{name} has another support"
    worst = apart(answer.span.behaviour_logprobs, undisturbed.span.behaviour_logprobs)
    assert worst <= tolerance, f"{name}: a log-prob is {worst:.2g} nats off"


def what_cannot_be_attached_is_refused(case: GeneratorCase) -> None:
    """An id in use, an unknown version and a cache of another size are refused, and a version is kept while an
    attached request needs it."""
    law, source, target = "what_cannot_be_attached_is_refused", case.loaded(), case.make()
    prompt = (1, 2, 3)
    for seed in range(20):
        source.submit(Request(seed, 0, prompt, seed, case.context - len(prompt)))
    source.step()
    begun = [request_id for request_id, tokens in source.decoded().items() if tokens]
    assert begun, f"{law}: nothing is begun after a step"
    (parcel,) = source.detach(begun[:1])
    refuses(EngineError, lambda: target.attach(parcel), law, "a parcel of an unknown version")
    target.load(0, case.weights[0])
    if parcel.cache is not None:
        short = Parcel(parcel.request, parcel.spans, parcel.cached, parcel.cache[:-4])
        refuses(EngineError, lambda: target.attach(short), law, "a cache that is too short")
    assert not target.decoded(), f"{law}: a refused parcel is held"
    target.attach(parcel)
    refuses(EngineError, lambda: target.attach(parcel), law, "an id that is in use")
    refuses(EngineError, lambda: target.unload(0), law, "unloading a version that an attached request needs")
    answered(target, [parcel.request], law)
