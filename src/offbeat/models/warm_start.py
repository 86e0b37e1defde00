"""The supervised phase: a fresh policy learns gold answers until it is right often enough for rewards to teach it.

Invariant: only response tokens that the policy says (EOS included) are learned, and the phase ends at the first check
where sampled exact match on prompts never trained on is expected to reach the target: sampled, because rewards of
samples are what a group's advantages come from. The policy is the moving average of the weights: those of a single step
swing by tens of points from one check to the next. Knows no file and no preset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from offbeat.errors import SettingsError, TaskError
from offbeat.models.gold import IGNORED, Example, GoldAnswers, Padded, micro_batches, pad
from offbeat.settings import ModelSettings

VALIDATION_PROMPTS = 512
CHECK_EVERY = 5
WARM_UP_STEPS = 30
MICRO_BATCH_TOKENS = 8192
BETAS = (0.9, 0.98)
MAX_GRADIENT_NORM = 1.0
AVERAGE_DECAY = 0.9
"""The moving average keeps this share of itself at every step: about ten steps are in it."""


class Rates(NamedTuple):
    """Exact match on validation prompts, each in [0, 1]: of greedy decoding, and expected of a sample."""

    greedy: float
    sampled: float


def warm_start(model: Any, gold: GoldAnswers, settings: ModelSettings, progress: Callable[[str, float], None]) -> Rates:
    """Train a Hugging Face causal language model in place; return the rates of exact match it ends with.

    `progress` gets a line and the share of the target reached so far. Raises TaskError where the target is not
    reached in `warm_start_max_steps`, SettingsError where the loss stops being finite.
    """
    target, best = settings.warm_start_target, 0.0
    answerable, prompts = gold.validation(VALIDATION_PROMPTS)
    validation = [pad(part) for part in micro_batches(answerable, MICRO_BATCH_TOKENS)]
    batches = _batches(gold.training(), settings.warm_start_batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.warm_start_learning_rate, betas=BETAS, weight_decay=0)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(AVERAGE_DECAY))  # type: ignore[no-untyped-call]
    for step in range(settings.warm_start_max_steps + 1):
        if step % CHECK_EVERY == 0 or step == settings.warm_start_max_steps:
            rates = exact_match_rates(average.module, validation, prompts)
            best = max(best, rates.sampled)
            reached = 1.0 if rates.sampled >= target else min(1.0, best / target)
            progress(
                f"warm start: step {step}, exact match sampled {rates.sampled:.3f} (until {target:g}), greedy"
                f" {rates.greedy:.3f}",
                reached,
            )
            if rates.sampled >= target:
                model.load_state_dict(average.module.state_dict())
                return rates
        if step < settings.warm_start_max_steps:
            for group in optimizer.param_groups:
                group["lr"] = settings.warm_start_learning_rate * min(1.0, (step + 1) / WARM_UP_STEPS)
            _update(model, optimizer, next(batches), step)
            average.update_parameters(model)
    raise TaskError(
        f"model.warm_start_max_steps = {settings.warm_start_max_steps}: sampled exact match came to {best:.3f}, below"
        f" model.warm_start_target = {target:g}; raise the steps, lower the target or set an easier task"
    )


@torch.no_grad()
def exact_match_rates(model: Any, validation: list[Padded], prompts: int) -> Rates:
    """Expected exact match over `prompts`, from one forward pass instead of generation.

    Greedy decoding gives the gold response if and only if, with the gold tokens before it given, each of its tokens
    is the most likely. Sampling at temperature 1 gives it with the product of its tokens' probabilities.
    """
    greedy, sampled = 0, 0.0
    for padded in validation:
        logits, targets = _response_logits(model, padded)
        predicting = padded.targets != IGNORED
        wrong = torch.zeros_like(predicting)
        wrong[predicting] = logits.argmax(dim=-1) != targets
        greedy += int((~wrong.any(dim=1)).sum())
        surprise = torch.zeros(predicting.shape)
        surprise[predicting] = functional.cross_entropy(logits, targets, reduction="none").float()
        sampled += float((-surprise.sum(dim=1)).exp().sum())
    return Rates(greedy / prompts, sampled / prompts)


def _update(model: Any, optimizer: torch.optim.Optimizer, batch: list[Example], step: int) -> None:
    """One AdamW update on the mean negative log-likelihood of the batch's response tokens."""
    tokens = sum(example.learned for example in batch)
    optimizer.zero_grad(set_to_none=True)
    for part in micro_batches(batch, MICRO_BATCH_TOKENS):
        logits, targets = _response_logits(model, pad(part))
        loss = functional.cross_entropy(logits, targets, reduction="sum") / tokens
        loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
    if not torch.isfinite(norm):
        rate = optimizer.param_groups[0]["lr"]
        raise SettingsError(
            f"model.warm_start_learning_rate = {rate:g}: the gradient stopped being finite at warm-start step {step};"
            " lower it"
        )
    optimizer.step()


def _response_logits(model: Any, padded: Padded) -> tuple[Tensor, Tensor]:
    """Logits [N, V] and targets [N] at the N positions that predict a response token."""
    hidden = model.model(input_ids=padded.inputs, use_cache=False).last_hidden_state
    predicting = padded.targets != IGNORED
    return model.lm_head(hidden[predicting]), padded.targets[predicting]


def _batches(examples: Iterator[Example], size: int) -> Iterator[list[Example]]:
    while True:
        yield list(islice(examples, size))
