"""The laws of the `Generator` port, one function each, stated through the port alone.

A law makes its own generators, so that none depends on another. It raises AssertionError saying what was expected
of which request. Knows no engine: whatever loads the same weights files can be checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from offbeat.errors import EngineError, WeightsError
from offbeat.ports import Generator, Request, Sampling
from offbeat.records import Span
from offbeat.testing.asking import finish, refuses


@dataclass(frozen=True, slots=True)
class GeneratorCase:
    """What is checked: `make` gives a fresh generator (2 slots or more) that holds no version.

    `weights` are two files of the same shape and different values, `damaged` one that must be refused. Token ids
    below `vocab` are valid; `context` bounds prompt + response. `tolerance` is in nats per token. A generator that
    `holds` one version only is given one at a time.
    """

    make: Callable[[], Generator]
    weights: tuple[Path, Path]
    damaged: Path
    vocab: int
    context: int
    tolerance: float = 1e-4
    holds: int = 2

    def loaded(self) -> Generator:
        """A fresh generator that holds the weights as versions 0 and 1, or 0 alone where it holds no more."""
        generator = self.make()
        for version in range(self.holds):
            generator.load(version, self.weights[version])
        return generator

    def version_of(self, request_id: int) -> int:
        """Requests take turns among the versions there are."""
        return request_id % self.holds

    def requests(self, count: int, first_id: int = 0, sampling: Sampling | None = None) -> list[Request]:
        """Requests of both versions with different prompts, seeds and limits; every third repeats a prompt."""
        made = []
        for i in range(first_id, first_id + count):
            length = 1 + i % 3 * 7 % (self.context // 2)
            prompt = tuple((3 * (i - i % 3) + 5 * k) % self.vocab for k in range(length))
            limit = 1 + (7 * i) % max(2, self.context // 3)
            made.append(Request(i, self.version_of(i), prompt, 1000 + i, limit, sampling or Sampling()))
        return made


def each_answered_once(case: GeneratorCase) -> None:
    """Every request is answered exactly once, by its own version, within its limit, in a slot that exists."""
    law, generator = "each_answered_once", case.loaded()
    requests = case.requests(3 * generator.slots + 1)
    for request_id, done in finish(generator, requests, law).items():
        request, name = requests[request_id], f"{law}: request {request_id}"
        tokens = len(done.span.token_ids)
        assert done.span.version == request.version, f"{name} of version {request.version} has {done.span.version}"
        assert 1 <= tokens <= request.max_new_tokens, f"{name} has {tokens} tokens of {request.max_new_tokens}"
        assert len(done.span.behaviour_logprobs) == tokens, f"{name}: not one log-prob per token"
        assert 0 <= done.slot < generator.slots, f"{name} was in slot {done.slot} of {generator.slots}"
        assert done.finish_reason in ("stop", "length"), f"{name} ended by {done.finish_reason!r}"
        full = tokens == request.max_new_tokens or tokens + len(request.prompt_ids) == case.context
        assert full or done.finish_reason == "stop", f"{name} ended by length after {tokens} tokens"


def never_more_running_than_slots(case: GeneratorCase) -> None:
    """`decoded` names every unfinished request; at most `slots` have tokens and are not parked, and the counts never
    fall."""
    law, generator = "never_more_running_than_slots", case.loaded()
    requests = case.requests(2 * generator.slots + 1)
    for request in requests:
        generator.submit(request)
    before = generator.decoded()
    assert before == {request.request_id: 0 for request in requests}, f"{law}: queued requests do not count 0"
    while before:
        done = {completion.request_id for completion in generator.step()}
        after = generator.decoded()
        assert after.keys() == before.keys() - done, f"{law}: unfinished requests are not those left"
        running = sum(tokens > 0 for request_id, tokens in after.items() if request_id not in generator.parked())
        assert running <= generator.slots, f"{law}: {running} run in {generator.slots} slots"
        assert all(after[i] >= before[i] for i in after), f"{law}: a token count fell"
        before = after


def logprobs_are_those_of_the_version(case: GeneratorCase) -> None:
    """Uncut log-probs at temperature 1 equal `score` under the request's version, and not under the other."""
    law, generator = "logprobs_are_those_of_the_version", case.loaded()
    requests = case.requests(2 * generator.slots)
    answers, own = finish(generator, requests, law), {}
    for request_id, done in answers.items():
        request = requests[request_id]
        own[request_id] = generator.score(request.version, request.prompt_ids, done.span.token_ids)
        worst = apart(done.span.behaviour_logprobs, own[request_id])
        assert worst <= case.tolerance, f"{law}: request {request_id} is {worst:.2g} nats off its version's score"
        assert done.span.behaviour_support is None, f"{law}: request {request_id} names a support without a cut"
    if case.holds == 1:
        generator.unload(0)
        generator.load(1, case.weights[1])
    distance = 0.0
    for request_id, done in answers.items():
        request = requests[request_id]
        other = generator.score(1 - request.version, request.prompt_ids, done.span.token_ids)
        distance = max(distance, apart(own[request_id], other))
    assert distance > 10 * case.tolerance, f"{law}: both versions score alike; were their weights taken up?"


def seeds_fix_the_tokens(case: GeneratorCase) -> None:
    """A request's tokens do not depend on its neighbours, the order or its id; other seeds give other tokens."""
    law, crowd = "seeds_fix_the_tokens", case.loaded()
    requests = case.requests(2 * crowd.slots)
    together = finish(crowd, list(reversed(requests)), law)
    for request in requests[:4]:
        twin = Request(77, request.version, request.prompt_ids, request.seed, request.max_new_tokens)
        alone = finish(case.loaded(), [twin], law)[77].span.token_ids
        crowded = together[request.request_id].span.token_ids
        assert alone == crowded, f"{law}: request {request.request_id} gives {alone} alone, {crowded} in a crowd"
    prompt, limit = (1, 2, 3), min(24, case.context - 3)
    answers = finish(case.loaded(), [Request(i, 0, prompt, i, limit) for i in range(8)], law)
    assert len({done.span.token_ids for done in answers.values()}) > 1, f"{law}: 8 seeds give the same tokens"


def greedy_takes_the_likeliest(case: GeneratorCase) -> None:
    """Temperature 0 ignores the seed; the log-prob is that of the temperature-1 distribution, and no other token
    scores higher."""
    law, generator = "greedy_takes_the_likeliest", case.loaded()
    limit = min(6, case.context - 3)
    greedy = Sampling(temperature=0.0)
    requests = [Request(i, case.version_of(i), (1, 2, 3), i, limit, greedy) for i in range(4)]
    answers = finish(generator, requests, law)
    for request in requests[:2]:
        span = answers[request.request_id].span
        other = answers[request.request_id + 2].span.token_ids
        assert span.token_ids == other, f"{law}: {span.token_ids} with one seed, {other} with another"
        own = generator.score(request.version, request.prompt_ids, span.token_ids)
        assert apart(own, span.behaviour_logprobs) <= case.tolerance, f"{law}: log-probs are not those of `score`"
        every = [generator.score(request.version, request.prompt_ids, (token,))[0] for token in range(case.vocab)]
        assert every[span.token_ids[0]] >= max(every) - case.tolerance, f"{law}: a likelier token was left out"


def cuts_are_normalised(case: GeneratorCase) -> None:
    """Under top-k, top-p and temperature the support holds the likeliest tokens, the sampled one among them, and
    its log-prob is that of softmax(log-probs / temperature) over the support."""
    law, generator = "cuts_are_normalised", case.loaded()
    prompt, limit = (1, 2, 3), min(3, case.context - 3)
    cuts = [Sampling(top_k=3), Sampling(temperature=0.7, top_k=5), Sampling(top_p=0.6), Sampling(1.5, 4, 0.8)]
    requests = [Request(i, case.version_of(i), prompt, 5 + i, limit, cut) for i, cut in enumerate(cuts)]
    for request_id, done in finish(generator, requests, law).items():
        request, span, name = requests[request_id], done.span, f"{law}: request {request_id}"
        support = span.behaviour_support
        assert support is not None, f"{name} has no support"
        assert len(support) == len(span.token_ids), f"{name} has not one support per token"
        for i, (token, kept) in enumerate(zip(span.token_ids, support, strict=True)):
            before = (*prompt, *span.token_ids[:i])
            every = [generator.score(request.version, before, (t,))[0] for t in range(case.vocab)]
            wanted = _slow_support(every, request.sampling)
            assert set(kept) == wanted, f"{name} keeps {sorted(kept)} at token {i}, expected {sorted(wanted)}"
            assert token in wanted, f"{name} sampled {token} from outside its support"
            heat = request.sampling.temperature
            log_total = math.log(sum(math.exp(every[t] / heat) for t in wanted))
            off = abs(every[token] / heat - log_total - span.behaviour_logprobs[i])
            assert off <= case.tolerance / min(1.0, heat), f"{name}: log-prob {i} is {off:.2g} nats off"


def what_is_sampled_stays(case: GeneratorCase) -> None:
    """Read out after every step, from where it was last read, a request's tokens and log-probs are those of its
    completion; nothing is told of requests that are not there."""
    law, generator = "what_is_sampled_stays", case.loaded()
    requests = case.requests(2 * generator.slots + 1)
    for request in requests:
        generator.submit(request)
    read: dict[int, list[tuple[int, int, float]]] = {request.request_id: [] for request in requests}
    whole: dict[int, list[tuple[int, int, float]]] = {}
    while generator.decoded():
        for done in generator.step():
            whole[done.request_id] = _tokens_of(done.spans)
            assert generator.sampled(done.request_id) == (), f"{law}: {done.request_id} is told of after its end"
        for request_id, count in generator.decoded().items():
            read[request_id] += _tokens_of(generator.sampled(request_id, len(read[request_id])))
            assert len(read[request_id]) == count, f"{law}: {request_id} has {count}, {len(read[request_id])} are told"
    for request_id, told in read.items():
        assert told == whole[request_id][: len(told)], f"{law}: {request_id} was told other tokens than it has"
    assert any(map(len, read.values())), f"{law}: no token is told before the end"


def _tokens_of(spans: Sequence[Span]) -> list[tuple[int, int, float]]:
    """(version, token, log-prob) of every token."""
    return [
        (span.version, token, logprob)
        for span in spans
        for token, logprob in zip(span.token_ids, span.behaviour_logprobs, strict=True)
    ]


def aborted_are_forgotten(case: GeneratorCase) -> None:
    """Aborted requests, running or queued, are never answered; the others are; unknown ids are ignored."""
    law, generator = "aborted_are_forgotten", case.loaded()
    limit = case.context // 2
    requests = [Request(i, case.version_of(i), (1, 2, 3), i, limit) for i in range(2 * generator.slots)]
    for request in requests:
        generator.submit(request)
    early = {done.request_id for done in generator.step()}
    gone = {requests[0].request_id, requests[-1].request_id}
    generator.abort([*gone, 10**6])
    assert not gone & generator.decoded().keys(), f"{law}: aborted requests are still held"
    late: set[int] = set()
    while generator.decoded():
        late |= {done.request_id for done in generator.step()}
    assert not gone & late, f"{law}: aborted requests {sorted(gone & late)} are answered"
    left = {request.request_id for request in requests} - gone
    assert left <= early | late, f"{law}: requests {sorted(left - early - late)} were lost with the aborted ones"


def versions_come_and_go(case: GeneratorCase) -> None:
    """A version is kept while a request needs it, forgotten when unloaded, and never silently replaced."""
    law, generator = "versions_come_and_go", case.loaded()
    generator.load(0, case.weights[0])
    refuses(
        (EngineError, WeightsError), lambda: generator.load(0, case.weights[1]), law, "version 0 with other weights"
    )
    generator.submit(Request(1, 0, (1, 2, 3), 1, 4))
    refuses(EngineError, lambda: generator.unload(0), law, "unloading a version that a queued request needs")
    if case.holds > 1:
        generator.unload(1)
    refuses(EngineError, lambda: generator.submit(Request(2, 1, (1,), 1, 1)), law, "a request for an unloaded version")
    refuses(EngineError, lambda: generator.score(1, (1,), (2,)), law, "a score under an unloaded version")
    while generator.decoded():
        generator.step()
    generator.unload(0)
    refuses(WeightsError, lambda: generator.load(2, case.damaged), law, "a damaged weights file")
    refuses(EngineError, lambda: generator.submit(Request(3, 2, (1,), 1, 1)), law, "a version that failed to load")


def misfits_are_refused(case: GeneratorCase) -> None:
    """A request that cannot be generated is refused at once, and refusing it disturbs nothing."""
    law, generator = "misfits_are_refused", case.loaded()
    fits = Request(1, 0, (1, 2, 3), 1, 2)
    generator.submit(fits)
    misfits = {
        "an unknown version": Request(2, 99, (1,), 1, 1),
        "a prompt as long as the context": Request(2, 0, (1,) * case.context, 1, 1),
        "a token id outside the vocabulary": Request(2, 0, (case.vocab,), 1, 1),
        "an id that is in use": fits,
    }
    for what, request in misfits.items():
        refuses(EngineError, lambda request=request: generator.submit(request), law, what)  # type: ignore[misc]
    assert generator.decoded() == {1: 0}, f"{law}: a refused request is held"
    answered = []
    while generator.decoded():
        answered += generator.step()
    assert [done.request_id for done in answered] == [1], f"{law}: the accepted request is not answered once"


def apart(ours: Sequence[float], theirs: Sequence[float]) -> float:
    assert len(ours) == len(theirs), f"{len(ours)} log-probs against {len(theirs)}"
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def _slow_support(logprobs: Sequence[float], sampling: Sampling) -> set[int]:
    """Temperature, then the top_k likeliest, then the fewest of those that hold top_p of what is left."""
    ranked = sorted(range(len(logprobs)), key=lambda token: -logprobs[token])
    ranked = ranked[: sampling.top_k or len(ranked)]
    weights = [math.exp(logprobs[token] / sampling.temperature) for token in ranked]
    kept, held = set[int](), 0.0
    for token, weight in zip(ranked, weights, strict=True):
        if held >= sampling.top_p * sum(weights) and sampling.top_p < 1:
            break
        kept.add(token)
        held += weight
    return kept
