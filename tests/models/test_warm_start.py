from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from offbeat.errors import SettingsError, TaskError
from offbeat.models.gold import Example, GoldAnswers, Limits, micro_batches, pad
from offbeat.models.presets import Preset, build_model, character_tokenizer
from offbeat.models.warm_start import _update, exact_match_rates, warm_start
from offbeat.settings import ModelSettings
from tests.models.conftest import CopyTask

TINY = Preset(width=32, hidden=64, layers=2, heads=2, kv_heads=2)
QUICK = ModelSettings(
    warm_start_target=0.5, warm_start_max_steps=400, warm_start_learning_rate=1e-2, warm_start_batch_size=32
)


def _gold(task: CopyTask) -> GoldAnswers:
    return GoldAnswers(task, character_tokenizer(), Limits(context=64, response=32))


@torch.no_grad()
def _decoded(model: Any, example: Example) -> tuple[bool, float]:
    """Token by token, no cache: whether greedy decoding gives the response, and how likely sampling is to."""
    ids, greedy, likely = list(example.prompt_ids), True, 1.0
    for token in example.response_ids:
        logits = model(torch.tensor([ids])).logits[0, -1]
        greedy = greedy and int(logits.argmax()) == token
        likely *= float(logits.softmax(-1)[token])
        ids.append(token)
    return greedy, likely


def test_it_stops_at_the_target_and_decoding_agrees(copy_task: CopyTask) -> None:
    model, heard = build_model(TINY, seed=0), []
    reached = warm_start(model, _gold(copy_task), QUICK, lambda line, share: heard.append((line, share)))
    examples, prompts = _gold(copy_task).validation(512)
    greedy, likely = zip(*(_decoded(model, example) for example in examples), strict=True)
    assert reached.greedy == sum(greedy) / prompts
    assert reached.sampled == pytest.approx(sum(likely) / prompts, abs=1e-4)
    assert reached.sampled >= QUICK.warm_start_target
    shares = [share for _, share in heard]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert all(share < 1.0 for share in shares[:-1])
    assert "exact match sampled" in heard[0][0]


def test_a_target_of_zero_trains_nothing(copy_task: CopyTask) -> None:
    model, fresh = build_model(TINY, seed=0), build_model(TINY, seed=0)
    warm_start(model, _gold(copy_task), QUICK.model_copy(update={"warm_start_target": 0.0}), lambda line, share: None)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True))


def test_a_target_out_of_reach_is_one_line_with_a_remedy(copy_task: CopyTask) -> None:
    settings = QUICK.model_copy(update={"warm_start_target": 1.0, "warm_start_max_steps": 3})
    with pytest.raises(TaskError, match=r"model\.warm_start_max_steps = 3: .* raise the steps") as caught:
        warm_start(build_model(TINY, seed=0), _gold(copy_task), settings, lambda line, share: None)
    assert "\n" not in str(caught.value)


def test_a_gradient_that_is_not_finite_names_the_learning_rate(copy_task: CopyTask) -> None:
    model = build_model(TINY, seed=0)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("inf"))
    with pytest.raises(SettingsError, match=r"model\.warm_start_learning_rate = .*; *lower it"):
        warm_start(model, _gold(copy_task), QUICK, lambda line, share: None)


def test_prompts_that_cannot_be_answered_lower_exact_match(copy_task: CopyTask) -> None:
    model = build_model(TINY, seed=0)
    warm_start(model, _gold(copy_task), QUICK, lambda line, share: None)
    examples, prompts = _gold(copy_task).validation(64)
    batches = [pad(part) for part in micro_batches(examples, 512)]
    once, doubled = (exact_match_rates(model, batches, number) for number in (prompts, 2 * prompts))
    assert doubled == (once.greedy / 2, once.sampled / 2)


def test_an_update_descends_the_mean_over_response_tokens_only() -> None:
    """Oracle: one example at a time, unpadded, summed by hand; the gradient must be the same."""
    examples = [Example((1, 5, 6), (7, 2)), Example((1, 8), (9, 10, 11, 2)), Example((1,) * 30, (12, 2))]
    model, plain = build_model(TINY, seed=1), build_model(TINY, seed=1)
    loss = torch.zeros(())
    for example in examples:
        ids = torch.tensor([example.prompt_ids + example.response_ids])
        first = len(example.prompt_ids) - 1
        logits = plain(ids).logits[0, first:-1]
        loss = loss + functional.cross_entropy(logits, torch.tensor(example.response_ids), reduction="sum")
    (loss / 8).backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    _update(model, torch.optim.SGD(model.parameters(), lr=0.0), examples, step=0)
    for ours, oracle in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, oracle.grad, rtol=1e-4, atol=1e-6)
