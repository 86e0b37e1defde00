"""What the engine promises its caller: seeds, refills, versions, refusals, aborts and loud failures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from offbeat.errors import EngineError, WeightsError
from offbeat.ports import Completion, Request, Sampling
from offbeat.rollout.engine import Engine, NonFiniteLogits
from tests.rollout.tiny import EOS, VOCAB, built, oracle_logits, weights

FAMILY = "qwen3"


def engine_with(*versions: int, slots: int = 4, context: int = 64, prefill_tokens: int = 4096) -> Engine:
    engine = Engine(built(FAMILY)[1], slots=slots, context=context, prefill_tokens=prefill_tokens)
    for version in versions:
        engine.load(version, weights(FAMILY, version))
    return engine


def drain(engine: Engine) -> dict[int, Completion]:
    done: dict[int, Completion] = {}
    while engine.decoded():
        done |= {completion.request_id: completion for completion in engine.step()}
    return done


def run(engine: Engine, requests: list[Request]) -> dict[int, Completion]:
    for request in requests:
        engine.submit(request)
    return drain(engine)


def some(count: int, version: int = 0, first: int = 0, limit: int = 30) -> list[Request]:
    return [
        Request(i, version, tuple((3 * (i // 2) + k) % VOCAB for k in range(1 + i // 2 % 9)), 900 + i, limit)
        for i in range(first, first + count)
    ]


def test_a_trajectory_does_not_depend_on_its_surroundings() -> None:
    """Bit for bit: neighbours, their versions, the number of slots."""
    requests = some(10)
    crowd = run(engine_with(0, slots=4), requests)
    others = [*some(9, version=1, first=100), *some(9, version=2, first=200)]
    mixed = run(engine_with(0, 1, 2, slots=7), [r for three in zip(others, requests, strict=False) for r in three])
    for request in requests[:9]:
        alone = run(engine_with(0, slots=1), [request])[request.request_id].span
        for span in (crowd[request.request_id].span, mixed[request.request_id].span):
            assert span.token_ids == alone.token_ids
            assert span.behaviour_logprobs == alone.behaviour_logprobs


def test_late_siblings_share_a_running_prompt_and_sample_the_same() -> None:
    """A request whose prompt a running slot holds is fed its last token only; nothing about the answer changes."""
    group = [Request(i, 0, tuple(range(8, 8 + 40 % VOCAB // 2)), i, 40) for i in range(6)]
    together = run(engine_with(0, slots=6), group)
    engine = engine_with(0, slots=6)
    late: dict[int, Completion] = {}
    for request in group:
        engine.submit(request)
        late |= {done.request_id: done for done in engine.step()}
    late |= drain(engine)
    for i in range(6):
        assert late[i].span.token_ids == together[i].span.token_ids
        assert late[i].span.behaviour_logprobs == together[i].span.behaviour_logprobs


def test_seeds_differ_and_any_whole_number_is_one() -> None:
    requests = [Request(i, 0, (9, 8), seed, 20) for i, seed in enumerate((0, 1, -1, 2**64, 2**64 + 1, 10**30))]
    spans = [done.span.token_ids for _, done in sorted(run(engine_with(0, slots=6), requests).items())]
    assert spans[0] == spans[3]
    assert spans[1] == spans[4]
    assert len(set(spans)) == 4


def test_a_finished_slot_is_refilled_in_the_next_step() -> None:
    engine, requests = engine_with(0, slots=2), [Request(i, 0, (9, i), i, 1 + i % 2) for i in range(6)]
    for request in requests:
        engine.submit(request)
    while engine.decoded():
        waiting = sum(count == 0 for count in engine.decoded().values())
        busy = len(engine.decoded()) - waiting
        finished = engine.step()
        taken = min(waiting, 2 - busy)
        assert len(finished) + sum(count > 0 for count in engine.decoded().values()) == busy + taken
        assert all(done.slot in (0, 1) for done in finished)


def test_the_eos_token_ends_a_response_and_belongs_to_it() -> None:
    done = run(engine_with(0, slots=8), some(60, limit=40)).values()
    stopped = [completion for completion in done if completion.finish_reason == "stop"]
    assert len(stopped) > 10
    for completion in done:
        tokens = completion.span.token_ids
        assert not set(tokens[:-1]) & set(EOS)
        assert (tokens[-1] in EOS) == (completion.finish_reason == "stop")
        assert len(completion.span.behaviour_logprobs) == len(tokens)


@pytest.mark.parametrize(("length", "limit", "most"), [(63, 50, 1), (60, 50, 4), (10, 5, 5)])
def test_limits_of_length(length: int, limit: int, most: int) -> None:
    requests = [Request(i, 0, (9,) * length, i, limit) for i in range(20)]
    done = run(engine_with(0), requests).values()
    assert max(len(completion.span.token_ids) for completion in done) == most
    assert all(len(c.span.token_ids) == most for c in done if c.finish_reason == "length")


def test_the_prefill_budget_delays_but_changes_nothing() -> None:
    requests = some(12)
    engine = engine_with(0, slots=12, prefill_tokens=1)
    for request in requests:
        engine.submit(request)
    engine.step()
    started = 12 - sum(count == 0 for count in engine.decoded().values())
    assert started == 2  # one prompt, shared by two requests
    delayed, at_once = drain(engine), run(engine_with(0, slots=12), requests)
    for i in delayed:
        assert delayed[i].span.token_ids == at_once[i].span.token_ids


def test_loading_twice() -> None:
    engine = engine_with(0)
    engine.load(0, weights(FAMILY, 0))
    with pytest.raises(EngineError, match="version 0 is loaded with other weights"):
        engine.load(0, weights(FAMILY, 1))
    assert engine.score(0, (1,), (2,)) == engine_with(0).score(0, (1,), (2,))
    engine.unload(0)
    engine.load(0, weights(FAMILY, 1))
    assert engine.versions == (0,)
    assert engine.score(0, (1,), (2,)) == engine_with(1).score(1, (1,), (2,))


def test_unload_is_refused_while_needed() -> None:
    engine = engine_with(0, 1)
    engine.submit(Request(5, 0, (9,), 1, 30))
    with pytest.raises(EngineError, match="first 5"):
        engine.unload(0)
    engine.step()
    if engine.decoded():
        with pytest.raises(EngineError, match="first 5"):
            engine.unload(0)
    engine.abort([5])
    engine.unload(0)
    with pytest.raises(EngineError, match=r"not loaded; loaded are \[1\]"):
        engine.unload(0)


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (Request(1, 4, (9,), 1, 1), "version 4 is not loaded"),
        (Request(1, 0, (), 1, 1), "no tokens"),
        (Request(1, 0, (9,) * 64, 1, 1), "64 tokens leaves no room"),
        (Request(1, 0, (VOCAB,), 1, 1), "vocabulary"),
        (Request(1, 0, (-1,), 1, 1), "vocabulary"),
        (Request(1, 0, (9,), 1, 0), "max_new_tokens"),
        (Request(1, 0, (9,), 1, 1, Sampling(temperature=-0.1)), "temperature"),
        (Request(1, 0, (9,), 1, 1, Sampling(temperature=float("nan"))), "temperature"),
        (Request(1, 0, (9,), 1, 1, Sampling(temperature=1e-30)), "temperature"),
        (Request(1, 0, (9,), 1, 1, Sampling(top_k=-1)), "top_k"),
        (Request(1, 0, (9,), 1, 1, Sampling(top_p=0.0)), "top_p"),
        (Request(7, 0, (9,), 1, 1), "already here"),
    ],
)
def test_refused_requests(request_: Request, named: str) -> None:
    engine = engine_with(0)
    engine.submit(Request(7, 0, (9,), 1, 3))
    with pytest.raises(EngineError, match=named):
        engine.submit(request_)
    assert engine.decoded() == {7: 0}


@pytest.mark.parametrize(
    ("prompt", "response", "named"),
    [((), (1,), "prompt: no tokens"), ((1,), (), "response: no tokens"), ((1,) * 40, (1,) * 25, "65 tokens")],
)
def test_refused_scores(prompt: tuple[int, ...], response: tuple[int, ...], named: str) -> None:
    with pytest.raises(EngineError, match=named):
        engine_with(0).score(0, prompt, response)


@pytest.mark.parametrize(("slots", "context"), [(0, 10), (1, 1), (1, 257)])
def test_refused_sizes(slots: int, context: int) -> None:
    with pytest.raises(EngineError, match="context"):
        Engine(built(FAMILY)[1], slots=slots, context=context)


def test_a_damaged_file_leaves_no_version_behind(tmp_path: Path) -> None:
    engine = engine_with(0)
    (tmp_path / "cut").write_bytes(weights(FAMILY).read_bytes()[:-9])
    with pytest.raises(WeightsError):
        engine.load(1, tmp_path / "cut")
    assert engine.versions == (0,)


def exploding(path: Path, name: str) -> Path:
    """Finite weights whose activations overflow from `name` on."""
    tensors = load_file(weights(FAMILY, 1))
    tensors[name] = torch.full_like(tensors[name], 3e38)
    save_file(tensors, path / "exploding.safetensors")
    return path / "exploding.safetensors"


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.input_layernorm.weight"])
def test_logits_that_are_not_finite_end_their_requests_only(name: str, tmp_path: Path) -> None:
    engine = engine_with(0, slots=6)
    engine.load(1, exploding(tmp_path, name))
    good, bad = some(3, limit=20), some(2, version=1, first=50)
    for request in good:
        engine.submit(request)
    early = engine.step()
    for request in bad:
        engine.submit(request)
    before = engine.decoded()
    with pytest.raises(NonFiniteLogits, match="under version 1: requests 50, 51 are dropped") as failed:
        engine.step()
    assert (failed.value.request_ids, failed.value.versions) == ((50, 51), (1,))
    assert engine.decoded() == {i: count for i, count in before.items() if i < 50}
    engine.unload(1)
    done = {completion.request_id: completion for completion in early} | run(engine, some(8, first=20))
    alone = run(engine_with(0), [*good, *some(8, first=20)])
    for request in (*good, *some(8, first=20)):
        span = done[request.request_id].span
        assert span.token_ids == alone[request.request_id].span.token_ids
        table = oracle_logits(built(FAMILY, 0)[0], request.prompt_ids + span.token_ids).log_softmax(1)
        expected = [float(table[len(request.prompt_ids) - 1 + i, t]) for i, t in enumerate(span.token_ids)]
        assert span.behaviour_logprobs == pytest.approx(expected, abs=1e-4)


def test_scores_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    engine = engine_with()
    engine.load(3, exploding(tmp_path, "model.norm.weight"))
    with pytest.raises(EngineError, match="version 3"):
        engine.score(3, (1, 2), (3,))


def test_the_rollout_room_does_not_import_transformers() -> None:
    import subprocess
    import sys

    code = "import sys, offbeat.rollout.engine; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
