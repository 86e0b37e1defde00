"""GRPO's objective (DeepSeekMath eq. 3, no KL term), token by token; and a softmax with temperature and kept ids."""

from __future__ import annotations

import math


def loss(
    target: list[list[float]],
    behaviour: list[list[float]],
    advantages: list[float],
    clip_low: float,
    clip_high: float,
    aggregation: str,
) -> float:
    """Ragged lists: one inner list of log-probs per trajectory, response tokens only."""
    token_sum, token_count, sequence_means = 0.0, 0, []
    for targets, behaviours, advantage in zip(target, behaviour, advantages, strict=True):
        terms = []
        for t, b in zip(targets, behaviours, strict=True):
            ratio = math.exp(t - b)
            clipped = max(1 - clip_low, min(1 + clip_high, ratio))
            terms.append(min(ratio * advantage, clipped * advantage))
        token_sum += sum(terms)
        token_count += len(terms)
        sequence_means.append(sum(terms) / len(terms))
    if aggregation == "token":
        return -token_sum / token_count
    return -sum(sequence_means) / len(sequence_means)


def statistics(
    target: list[list[float]], behaviour: list[list[float]], advantages: list[float], clip_low: float, clip_high: float
) -> dict[str, float]:
    ratios, removed, k3 = [], 0, []
    for targets, behaviours, advantage in zip(target, behaviour, advantages, strict=True):
        for t, b in zip(targets, behaviours, strict=True):
            ratio = math.exp(t - b)
            ratios.append(ratio)
            k3.append(ratio - 1 - math.log(ratio))
            if (advantage > 0 and ratio > 1 + clip_high) or (advantage < 0 and ratio < 1 - clip_low):
                removed += 1
    return {
        "tokens": len(ratios),
        "ratio_sum": sum(ratios),
        "ratio_max": max(ratios),
        "clipped": removed,
        "lag_kl_sum": sum(k3),
    }


def logprob(logits: list[float], token: int, temperature: float, kept: tuple[int, ...] | None) -> float:
    """log of exp(x_token / T) / sum over kept j of exp(x_j / T)."""
    ids = range(len(logits)) if kept is None else kept
    return logits[token] / temperature - math.log(sum(math.exp(logits[j] / temperature) for j in ids))


def kept_ids(logits: list[float], temperature: float, top_k: int, top_p: float) -> tuple[int, ...]:
    """The `top_k` likeliest ids (0: all), of them the fewest that hold `top_p` of the rest's probability."""
    ranked = sorted(range(len(logits)), key=lambda j: -logits[j])
    if top_k:
        ranked = ranked[:top_k]
    weights = [math.exp(logits[j] / temperature) for j in ranked]
    kept, held = [], 0.0
    for j, weight in zip(ranked, weights, strict=True):
        if held >= top_p * sum(weights) and kept:
            break
        kept.append(j)
        held += weight
    return tuple(kept)
