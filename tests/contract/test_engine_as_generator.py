"""The local engine passes the conformance suite of its port, and the suite notices generators that do not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch

from offbeat.ports import Completion, Parcel, Request
from offbeat.records import Span
from offbeat.rollout.engine import Engine
from offbeat.testing.contract import GENERATOR_LAWS, GeneratorCase, check_generator
from tests.rollout.tiny import VOCAB, built, weights

torch.set_num_threads(1)


def case(family: str, tmp_path: Path, kind: type[Engine] = Engine, slots: int = 3) -> GeneratorCase:
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(weights(family).read_bytes()[:-100])
    return GeneratorCase(
        make=lambda: kind(built(family)[1], slots=slots, context=48),
        weights=(weights(family, 0), weights(family, 1)),
        damaged=damaged,
        vocab=VOCAB,
        context=48,
    )


@pytest.mark.parametrize("law", GENERATOR_LAWS)
def test_law(law: str, tmp_path: Path) -> None:
    GENERATOR_LAWS[law](case("qwen3", tmp_path))


def test_whole_suite_on_another_family(tmp_path: Path) -> None:
    check_generator(case("llama", tmp_path, slots=2))


class _FewBlocks(Engine):
    """As many keys and values as one response may need, for three slots."""

    def __init__(self, model_dir: Path, slots: int, context: int) -> None:
        super().__init__(model_dir, slots, context, kv_tokens=context)


@pytest.mark.parametrize("law", GENERATOR_LAWS)
def test_law_while_requests_are_parked(law: str, tmp_path: Path) -> None:
    GENERATOR_LAWS[law](case("qwen3", tmp_path, _FewBlocks))


class _AnswersTwice(Engine):
    def step(self) -> list[Completion]:
        done = super().step()
        return done + done[:1]


class _MixesVersions(Engine):
    """Decodes everything with version 0, whatever it says."""

    def load(self, version: int, weights: Path) -> None:
        super().load(version, weights)
        self._weights[version] = self._weights[min(self._weights)]


class _SeedsBySlot(Engine):
    def submit(self, request: Request) -> None:
        super().submit(msgspec.structs.replace(request, seed=len(self.decoded())))


class _ForgetsToAbort(Engine):
    def abort(self, request_ids: Sequence[int]) -> None:
        super().abort(list(request_ids)[:1])


class _TellsFromTheStart(Engine):
    def sampled(self, request_id: int, start: int = 0) -> tuple[Span, ...]:
        return super().sampled(request_id)


class _SendsEmptyCaches(Engine):
    def detach(self, request_ids: Sequence[int], keep_cache: bool = True) -> list[Parcel]:
        return [
            msgspec.structs.replace(parcel, cache=parcel.cache and bytes(len(parcel.cache)))
            for parcel in super().detach(request_ids, keep_cache)
        ]


class _StartsAgain(Engine):
    """Forgets what was sampled before the move."""

    def attach(self, parcel: Parcel) -> None:
        super().attach(Parcel(parcel.request))


class _TakesAnyCache(Engine):
    def attach(self, parcel: Parcel) -> None:
        super().attach(msgspec.structs.replace(parcel, cached=0, cache=None))


class _HidesTheCut(Engine):
    """Scores at another temperature than it says."""

    def score(self, version: int, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        return [value - 0.01 for value in super().score(version, prompt_ids, response_ids)]


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (_AnswersTwice, "each_answered_once"),
        (_MixesVersions, "logprobs_are_those_of_the_version"),
        (_SeedsBySlot, "seeds_fix_the_tokens"),
        (_ForgetsToAbort, "aborted_are_forgotten"),
        (_TellsFromTheStart, "what_is_sampled_stays"),
        (_SendsEmptyCaches, "detached_go_on_elsewhere"),
        (_StartsAgain, "detached_go_on_elsewhere"),
        (_TakesAnyCache, "what_cannot_be_attached_is_refused"),
        (_HidesTheCut, "logprobs_are_those_of_the_version"),
        (_HidesTheCut, "greedy_takes_the_likeliest"),
    ],
)
def test_the_suite_notices(broken: type[Engine], law: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=law):
        GENERATOR_LAWS[law](case("qwen3", tmp_path, broken))
