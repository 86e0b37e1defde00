"""What an objective is: a pure function from log-probs and advantages to one surrogate per response token.

*Named-policies invariant*: *behaviour* sampled, *proximal* is the target as it was when the iteration began, *target*
is in training and alone carries a gradient. *On-policy invariant*: where all three are equal, the gradient is that of
REINFORCE with the same advantage. An objective is also the section of the settings that chooses it, so it must
cost nothing to import: tensors are used by their methods. Knows no model, no batch and no loss normaliser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from offbeat.task_settings import Section

if TYPE_CHECKING:
    from torch import Tensor

Aggregation = Literal["token", "sequence", "constant"]
Bounds = tuple[float, ...]
"""What `survey` found out about a whole mini-batch; empty for objectives that need nothing of the kind."""

Ratio = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Log-probs of three policies [B, L], advantages [B, 1], mask [B, L] bool: true at response tokens."""

    target_logprobs: Tensor
    proximal_logprobs: Tensor
    behaviour_logprobs: Tensor
    advantages: Tensor
    mask: Tensor

    def target_to_behaviour(self) -> Tensor:
        """log target - log behaviour [B, L], 0 outside the mask; carries the gradient."""
        return (self.target_logprobs - self.behaviour_logprobs).masked_fill(~self.mask, 0.0)

    def target_to_proximal(self) -> Tensor:
        """log target - log proximal [B, L], 0 outside the mask; carries the gradient."""
        return (self.target_logprobs - self.proximal_logprobs).masked_fill(~self.mask, 0.0)

    def proximal_to_behaviour(self) -> Tensor:
        """log proximal - log behaviour [B, L], 0 outside the mask; data."""
        return (self.proximal_logprobs - self.behaviour_logprobs).masked_fill(~self.mask, 0.0).detach()

    def sequence_mean(self, values: Tensor) -> Tensor:
        """Mean [B, 1] over a trajectory's response tokens of values [B, L] that are 0 outside the mask."""
        return values.sum(dim=1, keepdim=True) / self.mask.sum(dim=1, keepdim=True).clamp(min=1)


@dataclass(frozen=True, slots=True)
class Terms:
    """`surrogate` [B, L]: what is to be maximised, token by token; values outside the mask do not count.

    `clipped` [B, L] bool: where the objective clips, truncates or masks a token that has an advantage.
    """

    surrogate: Tensor
    clipped: Tensor


class Objective(Section):
    """Base of all objectives; the subclasses' fields are their settings, with the source's values as defaults."""

    name: str

    AGGREGATION: ClassVar[Aggregation] = "token"
    """How the source sums over tokens; `learner.aggregation` may say otherwise."""
    NORMALISES: ClassVar[bool] = True
    """Does the source divide the group-relative advantage by the group's standard deviation?"""
    FIXED: ClassVar[bool] = False
    """Are those two what the objective is, so that the settings may not say otherwise?"""
    USES_PROXIMAL: ClassVar[bool] = False
    SURVEYS: ClassVar[bool] = False
    """Must the log-probs of the whole mini-batch be known before the first gradient (a forward pass more)?"""
    TITLE: ClassVar[str]
    FORMULA: ClassVar[str]
    SOURCE: ClassVar[str]
    READING: ClassVar[str] = ""
    """Where the source leaves something open, or we differ: what is done here."""

    @property
    def ratio_bounds(self) -> tuple[float, float] | None:
        """Where the ratio of a single token is clipped, if the settings alone say so."""
        return None

    def survey(self, tokens: Tokens) -> Bounds:
        """Bounds from the response tokens of a whole mini-batch, given as Tokens of shape [N, 1], without gradient."""
        return ()

    def terms(self, tokens: Tokens, bounds: Bounds = ()) -> Terms:
        """The surrogate of every token. `bounds` is what `survey` returned for the mini-batch."""
        raise NotImplementedError
