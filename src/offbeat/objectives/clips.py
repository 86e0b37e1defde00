"""PPO's clip in its two places: on target / behaviour, or on target / proximal with a weight for who sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from offbeat.objectives.objective import Bounds, Objective, Terms, Tokens

if TYPE_CHECKING:
    from torch import Tensor


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, low: float, high: float) -> Terms:
    """min(r A, clip(r, low, high) A) with r = exp(log_ratio): PPO's clip (arXiv 1707.06347, eq. 7), bounds apart."""
    ratio = log_ratio.exp()
    surrogate = (ratio * advantages).minimum(ratio.clamp(low, high) * advantages)
    detached = ratio.detach()
    return Terms(surrogate, ((advantages > 0) & (detached > high)) | ((advantages < 0) & (detached < low)))


class _Clipped(Objective):
    """Fields that both families share: the clip is [1 - clip_low, 1 + clip_high]."""

    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.2


class BehaviourClip(_Clipped):
    """min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = target / behaviour."""

    @property
    def ratio_bounds(self) -> tuple[float, float] | None:
        return 1.0 - self.clip_low, 1.0 + self.clip_high

    def terms(self, tokens: Tokens, bounds: Bounds = ()) -> Terms:
        return clipped_surrogate(
            tokens.target_to_behaviour(), tokens.advantages, 1.0 - self.clip_low, 1.0 + self.clip_high
        )


class ProximalClip(_Clipped):
    """w min(u A, clip(u, 1 - clip_low, 1 + clip_high) A), u = target / proximal; w is for the subclass to say."""

    USES_PROXIMAL: ClassVar[bool] = True

    def log_weight(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """log w, data, -inf where w = 0, and where w was truncated or masked (bool), both [B, L] or [B, 1]."""
        raise NotImplementedError

    def terms(self, tokens: Tokens, bounds: Bounds = ()) -> Terms:
        log_weight, bounded = self.log_weight(tokens)
        inner = clipped_surrogate(
            tokens.target_to_proximal(), tokens.advantages, 1.0 - self.clip_low, 1.0 + self.clip_high
        )
        return Terms(log_weight.exp() * inner.surrogate, inner.clipped | (bounded & (tokens.advantages != 0)))
