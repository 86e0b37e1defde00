"""Gradient alignment control for stacked agents: each agent's gradient is compared with its own last one, never
with another's.

The rule is `align.rule` (arXiv 2603.01501), applied to A agents at once: a cosine, a regime and a gain for each. A
skipped agent keeps parameters and optimizer moments of its own; the step count of Adam is shared by all, as
elsewhere in `learners`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from offbeat.align.rule import AlignSettings, Decision, cosine_of, decide


class StackedAlignment:
    """Control for one network of A agents. `last` (A,): decisions of the latest step."""

    def __init__(self, settings: AlignSettings, agents: int) -> None:
        self.settings = settings
        self.reference: list[Tensor] = []
        self.skips = torch.zeros(agents, dtype=torch.int64)
        self.last: list[Decision] = [Decision("invalid", 1.0)] * agents

    def control(self, gradients: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """The controlled gradients (A, ...) and which agents (k,) must not step at all."""
        if not self.reference:
            self.reference = [torch.zeros_like(g) for g in gradients]
        own = _sums(gradients, gradients)
        products, others = _sums(gradients, self.reference), _sums(self.reference, self.reference)
        cosines = [cosine_of(*three) for three in zip(products.tolist(), own.tolist(), others.tolist(), strict=True)]
        self.last = [decide(self.settings, c, k) for c, k in zip(cosines, self.skips.tolist(), strict=True)]
        skipped = torch.tensor([d.regime == "skipped" for d in self.last])
        self.skips = torch.where(skipped, self.skips + 1, 0)
        gain = torch.tensor([d.gain for d in self.last], dtype=torch.float64)
        along = torch.where(others > 0, (gain - 1.0) * products / others, 0.0).nan_to_num(0.0, 0.0, 0.0)
        turned = [g + _by_agent(along, g) * r for g, r in zip(gradients, self.reference, strict=True)]
        fresh = turned if self.settings.reference == "applied" else list(gradients)
        taken = torch.ones_like(skipped) if self.settings.on_skip == "update" else ~skipped
        for kept, new in zip(self.reference, fresh, strict=True):
            kept.copy_(torch.where(_by_agent(taken, kept).bool(), new, kept))
        return turned, skipped.nonzero()[:, 0]

    def state(self) -> dict[str, Tensor]:
        """What must be saved to go on."""
        return {"skips": self.skips} | {f"reference.{k}": r for k, r in enumerate(self.reference)}

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Take up what `state` gave."""
        self.skips = saved["skips"].clone()
        self.reference = [saved[f"reference.{k}"].clone() for k in range(len(saved) - 1)]


def _sums(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """<left, right> of each agent (A,), float64."""
    total = torch.zeros(len(left[0]), dtype=torch.float64)
    for a, b in zip(left, right, strict=True):
        total += (a * b).flatten(1).sum(1, dtype=torch.float64)
    return total


def _by_agent(values: Tensor, like: Tensor) -> Tensor:
    """(A,) against (A, ...)."""
    return values.to(like.dtype).view(-1, *([1] * (like.dim() - 1)))
