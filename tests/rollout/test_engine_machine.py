"""Random histories of submit, abort, load, unload and step: every request ends exactly once, under its version.
And of two engines with few blocks between which requests move: every answer is the one it gives alone."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from offbeat.errors import EngineError
from offbeat.ports import Completion, Request, Sampling
from offbeat.rollout.engine import Engine
from offbeat.rollout.kernels import BLOCK
from tests.rollout.tiny import VOCAB, built, weights

FAMILY, SLOTS, CONTEXT = "qwen3", 3, 80
VERSIONS = st.integers(0, 2)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(built(FAMILY)[1], slots=SLOTS, context=CONTEXT, prefill_tokens=64)
        self.loaded: set[int] = set()
        self.waiting: dict[int, Request] = {}
        self.answered: set[int] = set()
        self.next_id = 0

    @rule(version=VERSIONS)
    def load(self, version: int) -> None:
        self.engine.load(version, weights(FAMILY, version))
        self.loaded.add(version)

    @rule(version=VERSIONS)
    def load_other_weights(self, version: int) -> None:
        if version in self.loaded:
            with pytest.raises(EngineError):
                self.engine.load(version, weights(FAMILY, (version + 1) % 3))

    @rule(version=VERSIONS)
    def unload(self, version: int) -> None:
        needed = any(request.version == version for request in self.waiting.values())
        if version not in self.loaded or needed:
            with pytest.raises(EngineError):
                self.engine.unload(version)
        else:
            self.engine.unload(version)
            self.loaded.remove(version)

    @rule(version=VERSIONS, salt=st.integers(0, 3), length=st.sampled_from([1, 2, 32, 40]), limit=st.integers(1, 40),
          copies=st.integers(1, 3), top_k=st.sampled_from([0, 0, 4]))  # fmt: skip
    def submit(self, version: int, salt: int, length: int, limit: int, copies: int, top_k: int) -> None:
        prompt = tuple((salt + 5 * k) % VOCAB for k in range(length))
        for _ in range(copies):
            request = Request(self.next_id, version, prompt, self.next_id, limit, Sampling(top_k=top_k))
            if version not in self.loaded:
                with pytest.raises(EngineError):
                    self.engine.submit(request)
                return
            self.engine.submit(request)
            self.waiting[request.request_id] = request
            self.next_id += 1

    @rule(picks=st.lists(st.integers(0, 60), max_size=3))
    def abort(self, picks: list[int]) -> None:
        self.engine.abort(picks)
        for pick in picks:
            self.waiting.pop(pick, None)

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            for done in self.engine.step():
                self._check(done)

    def _check(self, done: Completion) -> None:
        assert done.request_id not in self.answered
        request, span = self.waiting.pop(done.request_id), done.span
        self.answered.add(done.request_id)
        assert span.version == request.version
        if request.sampling.top_k == 0:
            scored = self.engine.score(request.version, request.prompt_ids, span.token_ids)
            assert list(span.behaviour_logprobs) == scored

    @invariant()
    def unfinished_are_those_waiting(self) -> None:
        decoded = self.engine.decoded()
        assert decoded.keys() == self.waiting.keys()
        assert sum(count > 0 for count in decoded.values()) <= SLOTS

    def teardown(self) -> None:
        for _ in range(100 * (1 + len(self.waiting))):
            if not self.waiting:
                break
            for done in self.engine.step():
                self._check(done)
        assert not self.waiting
        assert self.engine.step() == []
        assert self.engine._cache.owned.sum() == 0


class Roaming(RuleBasedStateMachine):
    """Two engines with few blocks between which requests move; any may be suspended, and switched in place."""

    def __init__(self) -> None:
        super().__init__()
        self.engines = [
            Engine(built(FAMILY)[1], slots=slots, context=CONTEXT, prefill_tokens=64, kv_tokens=kv_tokens)
            for slots, kv_tokens in ((SLOTS, 4 * BLOCK), (SLOTS + 2, 5 * BLOCK))
        ]
        for engine in self.engines:
            for version in (0, 1):
                engine.load(version, weights(FAMILY, version))
        self.homes: dict[int, int] = {}
        self.requests: dict[int, Request] = {}
        self.suspended: set[int] = set()
        self.answered: set[int] = set()

    @rule(home=st.integers(0, 1), version=st.integers(0, 1), length=st.sampled_from([1, 2, 31, 40]),
          limit=st.integers(1, 40), copies=st.integers(1, 3), top_k=st.sampled_from([0, 0, 4]))  # fmt: skip
    def submit(self, home: int, version: int, length: int, limit: int, copies: int, top_k: int) -> None:
        prompt = tuple(5 * k % VOCAB for k in range(length))
        for _ in range(copies):
            request_id = len(self.requests)
            request = Request(request_id, version, prompt, request_id, limit, Sampling(top_k=top_k))
            self.engines[home].submit(request)
            self.requests[request_id], self.homes[request_id] = request, home

    @rule(home=st.integers(0, 1), picks=st.lists(st.integers(0, 30), max_size=4), keep_cache=st.booleans(),
          back=st.booleans())  # fmt: skip
    def move(self, home: int, picks: list[int], keep_cache: bool, back: bool) -> None:
        there = [pick for pick in dict.fromkeys(picks) if self.homes.get(pick) == home]
        parcels = self.engines[home].detach(picks, keep_cache)
        assert [parcel.request.request_id for parcel in parcels] == there
        target = home if back else 1 - home
        for parcel in parcels:
            self.engines[target].attach(parcel)
            with pytest.raises(EngineError, match="already here"):
                self.engines[target].attach(parcel)
            self.homes[parcel.request.request_id] = target
        self.suspended -= set(there)

    @rule(home=st.integers(0, 1), picks=st.lists(st.integers(0, 30), max_size=4))
    def suspend(self, home: int, picks: list[int]) -> None:
        self.engines[home].suspend(picks)
        self.suspended |= {pick for pick in picks if self.homes.get(pick) == home}

    @rule(picks=st.lists(st.integers(0, 30), max_size=4), keep_cache=st.booleans())
    def switch_in_place(self, picks: list[int], keep_cache: bool) -> None:
        for pick in picks:
            if pick in self.homes:
                self.engines[self.homes[pick]].switch([pick], self.requests[pick].version, keep_cache)
                self.suspended.discard(pick)

    @rule(picks=st.lists(st.integers(0, 30), max_size=2))
    def abort(self, picks: list[int]) -> None:
        for engine in self.engines:
            engine.abort(picks)
        for pick in picks:
            self.homes.pop(pick, None)
        self.suspended -= set(picks)

    @rule(home=st.integers(0, 1), steps=st.integers(1, 12))
    def step(self, home: int, steps: int) -> None:
        for _ in range(steps):
            self._step(home)

    def _step(self, home: int) -> None:
        engine = self.engines[home]
        before = engine.decoded()
        answers = engine.step()
        after = engine.decoded()
        for done in answers:
            assert self.homes.pop(done.request_id) == home
            assert done.request_id not in self.answered | self.suspended
            self.answered.add(done.request_id)
            tokens, logprobs = alone(msgspec.structs.replace(self.requests[done.request_id], request_id=0))
            span = done.span
            assert span.token_ids == tokens
            assert span.behaviour_logprobs == logprobs
        assert answers or after != before or before.keys() <= self.suspended, "nobody advances"
        assert all(after[request_id] == before[request_id] for request_id in self.suspended & before.keys())

    @invariant()
    def each_is_at_home_within_the_budget(self) -> None:
        for home, (engine, budget) in enumerate(zip(self.engines, (4, 5), strict=True)):
            assert engine.decoded().keys() == {i for i, where in self.homes.items() if where == home}
            assert set(engine.parked()) <= engine.decoded().keys()
            assert engine.cached_tokens <= budget * BLOCK

    def teardown(self) -> None:
        self.switch_in_place(list(self.homes), keep_cache=True)
        for home, engine in enumerate(self.engines):
            while engine.decoded():
                self._step(home)
            assert engine.step() == []
            assert engine.cached_tokens == 0
        assert not self.homes


@cache
def alone(request: Request) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Tokens and log-probs of a request on an engine of its own."""
    engine = Engine(built(FAMILY)[1], slots=1, context=CONTEXT)
    engine.load(request.version, weights(FAMILY, request.version))
    engine.submit(request)
    while engine.decoded():
        for done in engine.step():
            return done.span.token_ids, done.span.behaviour_logprobs
    raise AssertionError("no answer")


Histories.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestHistories = Histories.TestCase
Roaming.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestRoaming = Roaming.TestCase
