"""Every objective as its paper writes it, one token at a time, on plain floats.

A function takes one mini-batch as ragged lists of log-probs (`target`, `proximal`, `behaviour`), the advantages and the
parameters, and returns for each token the value of the surrogate J and its derivative by the token's target log-prob.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Ragged = list[list[float]]
Pair = tuple[float, float]


@dataclass(frozen=True)
class Problem:
    target: Ragged
    proximal: Ragged
    behaviour: Ragged
    advantages: list[float]


def ratios(above: list[float], below: list[float]) -> list[float]:
    return [math.exp(a - b) for a, b in zip(above, below, strict=True)]


def product(values: list[float]) -> float:
    result = 1.0
    for value in values:
        result *= value
    return result


def clip(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))


def ppo(ratio: float, advantage: float, low: float, high: float) -> Pair:
    unclipped, clipped = ratio * advantage, clip(ratio, low, high) * advantage
    return (unclipped, ratio * advantage) if unclipped <= clipped else (clipped, 0.0)


def behaviour_clip(problem: Problem, clip_low: float, clip_high: float) -> list[list[Pair]]:
    return [
        [ppo(r, a, 1 - clip_low, 1 + clip_high) for r in ratios(t, b)]
        for t, b, a in zip(problem.target, problem.behaviour, problem.advantages, strict=True)
    ]


def proximal_clip(
    problem: Problem, clip_low: float, clip_high: float, weights: Callable[[list[float]], list[float]]
) -> list[list[Pair]]:
    """`weights` turns a trajectory's proximal / behaviour ratios into one weight a token."""
    rows = []
    for t, p, b, a in zip(problem.target, problem.proximal, problem.behaviour, problem.advantages, strict=True):
        terms = [ppo(u, a, 1 - clip_low, 1 + clip_high) for u in ratios(t, p)]
        rows.append([(w * value, w * slope) for w, (value, slope) in zip(weights(ratios(p, b)), terms, strict=True)])
    return rows


def gspo(problem: Problem, clip_low: float, clip_high: float) -> list[list[Pair]]:
    rows = []
    for t, b, a in zip(problem.target, problem.behaviour, problem.advantages, strict=True):
        s = product(ratios(t, b)) ** (1 / len(t))
        rows.append([ppo(s, a, 1 - clip_low, 1 + clip_high)] * len(t))
    return rows


def cispo(problem: Problem, clip_low: float, clip_high: float) -> list[list[Pair]]:
    rows = []
    for t, b, a in zip(problem.target, problem.behaviour, problem.advantages, strict=True):
        weights = [clip(r, 1 - clip_low, 1 + clip_high) for r in ratios(t, b)]
        rows.append([(w * a * logprob, w * a) for w, logprob in zip(weights, t, strict=True)])
    return rows


def decoupled_ppo(problem: Problem, clip_low: float, clip_high: float, cap: float, over_cap: str) -> list[list[Pair]]:
    over = 0.0 if over_cap == "mask" else cap
    return proximal_clip(problem, clip_low, clip_high, lambda row: [over if w > cap else w for w in row])


def tis(problem: Problem, clip_low: float, clip_high: float, level: str, cap: float) -> list[list[Pair]]:
    def weights(row: list[float]) -> list[float]:
        return [min(w, cap) for w in row] if level == "token" else [min(product(row), cap)] * len(row)

    return proximal_clip(problem, clip_low, clip_high, weights)


def mis(
    problem: Problem, clip_low: float, clip_high: float, level: str, lowest: float, highest: float
) -> list[list[Pair]]:
    def weights(row: list[float]) -> list[float]:
        rho = row if level == "token" else [product(row)] * len(row)
        return [w if lowest <= w <= highest else 0.0 for w in rho]

    return proximal_clip(problem, clip_low, clip_high, weights)


def geo_rs(problem: Problem, clip_low: float, clip_high: float, lowest: float, highest: float) -> list[list[Pair]]:
    def weights(row: list[float]) -> list[float]:
        return [1.0 if lowest <= product(row) ** (1 / len(row)) <= highest else 0.0] * len(row)

    return proximal_clip(problem, clip_low, clip_high, weights)


def icepop(problem: Problem, clip_low: float, clip_high: float, lowest: float, highest: float) -> list[list[Pair]]:
    return mis(problem, clip_low, clip_high, "token", lowest, highest)


def m2po(problem: Problem, threshold: float, tokens: str) -> list[list[Pair]]:
    """Mask the token with the largest (log r)^2, with all tied to it, until the mean of the rest is small enough."""
    counted = []
    for i, (t, b, a) in enumerate(zip(problem.target, problem.behaviour, problem.advantages, strict=True)):
        for j, log_ratio in enumerate(x - y for x, y in zip(t, b, strict=True)):
            if tokens == "all" or (a > 0 and log_ratio > 0) or (a < 0 and log_ratio < 0):
                counted.append((log_ratio**2, i, j))
    masked = set()
    while counted and sum(square for square, _, _ in counted) / len(counted) > threshold:
        largest = max(counted)[0]
        masked |= {(i, j) for square, i, j in counted if square == largest}
        counted = [entry for entry in counted if entry[0] < largest]
    rows = []
    for i, (t, b, a) in enumerate(zip(problem.target, problem.behaviour, problem.advantages, strict=True)):
        rows.append([(0.0, 0.0) if (i, j) in masked else (r * a, r * a) for j, r in enumerate(ratios(t, b))])
    return rows


def topr(problem: Problem) -> list[list[Pair]]:
    rows = []
    for t, b, a in zip(problem.target, problem.behaviour, problem.advantages, strict=True):
        weight = 1.0 if a >= 0 else clip(product(ratios(t, b)), 0.0, 1.0)
        rows.append([(weight * a * logprob, weight * a) for logprob in t])
    return rows


def sapo(problem: Problem, tau_positive: float, tau_negative: float) -> list[list[Pair]]:
    rows = []
    for t, b, a in zip(problem.target, problem.behaviour, problem.advantages, strict=True):
        tau = tau_positive if a > 0 else tau_negative
        gates = [1 / (1 + math.exp(-tau * (r - 1))) for r in ratios(t, b)]
        rows.append([(4 / tau * g * a, 4 * g * (1 - g) * r * a) for g, r in zip(gates, ratios(t, b), strict=True)])
    return rows


def bapo(
    problem: Problem,
    low_from: float,
    low_to: float,
    low_step: float,
    high_from: float,
    high_to: float,
    high_step: float,
    positive_share: float,
) -> list[list[Pair]]:
    low, high = low_from, high_from
    while True:
        rows = [
            [ppo(r, a, low, high) for r in ratios(t, b)]
            for t, b, a in zip(problem.target, problem.behaviour, problem.advantages, strict=True)
        ]
        values = [(value, a) for row, a in zip(rows, problem.advantages, strict=True) for value, _ in row]
        positive = sum(value for value, a in values if a > 0)
        negative = -sum(value for value, a in values if a < 0)
        if negative == 0 or positive / (positive + negative) >= positive_share:
            return rows
        if high < high_to - 1e-9:
            high = min(high + high_step, high_to)
        elif low < low_to - 1e-9:
            low = min(low + low_step, low_to)
        else:
            return rows


FORMULAS: dict[str, Callable[..., list[list[Pair]]]] = {
    "grpo": behaviour_clip, "dr-grpo": behaviour_clip, "dapo": behaviour_clip, "gspo": gspo, "cispo": cispo,
    "decoupled-ppo": decoupled_ppo, "tis": tis, "mis": mis, "geo-rs": geo_rs, "icepop": icepop, "m2po": m2po,
    "topr": topr, "sapo": sapo, "bapo": bapo,
}  # fmt: skip


def divisor(aggregation: str, lengths: list[int], row: int, longest: int) -> float:
    """What a token of that trajectory is divided by in the loss."""
    return {
        "token": sum(lengths),
        "sequence": lengths[row] * len(lengths),
        "constant": len(lengths) * longest,
    }[aggregation]
