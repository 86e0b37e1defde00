"""Random histories of submit, abort, load, unload and step: every request ends exactly once, under its version."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from offbeat.errors import EngineError
from offbeat.ports import Completion, Request, Sampling
from offbeat.rollout.engine import Engine
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
            assert span.behaviour_logprobs == pytest.approx(scored, abs=1e-4)

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


Histories.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestHistories = Histories.TestCase
