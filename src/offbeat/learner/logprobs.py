"""Target log-probs of response tokens, under the very distribution that the behaviour policy sampled from.

*Lag-0 invariant*: with the weights that sampled, target equals behaviour: logits are divided by the temperature
and, where top-k or top-p cut, normalised over exactly the ids the behaviour policy kept. Knows no objective.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from offbeat.learner.batches import Sample
from offbeat.learner.layout import KeptIds, MicroBatch, micro_batch
from offbeat.learner.policy import Policy


def target_logprobs(policy: Policy, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs [B, L] (0 outside the response mask, carries the gradient) and the entropy summed over the N tokens.

    log p_i = x_i / temperature - logsumexp over kept j of x_j / temperature, x the logits. Entropies are of that
    same distribution, in nats, without gradient.
    """
    logits = policy.response_logits(batch)
    distribution = log_distribution(logits, temperature, batch.kept)
    chosen = distribution.gather(1, batch.response_ids.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        entropy = torch.special.entr(distribution.exp()).sum(dtype=torch.float64)
    return torch.zeros(batch.response_mask.shape).masked_scatter(batch.response_mask, chosen), entropy


def log_distribution(logits: Tensor, temperature: float, kept: KeptIds | None) -> Tensor:
    """Log-probs [N, V] of the tempered and cut distribution; -inf at ids that were not kept."""
    if temperature != 1.0:
        logits = logits / temperature
    if kept is not None:
        removed = kept.cut.unsqueeze(1).repeat(1, logits.shape[1])
        removed[kept.positions, kept.token_ids] = False
        logits = logits.masked_fill(removed, -torch.inf)
    return torch.log_softmax(logits, dim=-1)


def sample_logprobs(policy: Policy, sample: Sample, temperature: float) -> list[float]:
    """Log-probs [L] of one sample's response tokens, without gradient."""
    with torch.no_grad():
        logprobs, _ = target_logprobs(policy, micro_batch([[sample]]), temperature)
    return [float(logprob) for logprob in logprobs[0].tolist()]


def plain_logprobs(policy: Policy, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
    """Log-probs [L] of a response at temperature 1 over the whole vocabulary: the canary's measure."""
    unknown = (0.0,) * len(response_ids)
    sample = Sample(0, tuple(prompt_ids), tuple(response_ids), unknown, None, 0.0)
    return sample_logprobs(policy, sample, temperature=1.0)
