"""SAPO: a sigmoid gate instead of a clip, so that the gradient fades where PPO's ends."""

from __future__ import annotations

from typing import ClassVar, Literal

from offbeat.objectives.objective import Bounds, Objective, Ratio, Terms, Tokens


class Sapo(Objective):
    """f(r) A, f(r) = 4 / tau sigmoid(tau (r - 1)), r = target / behaviour; tau by the sign of the advantage.

    f'(1) = 1: the gate leaves the on-policy gradient as it is.
    """

    name: Literal["sapo"] = "sapo"
    tau_positive: Ratio = 1.0
    tau_negative: Ratio = 1.05

    TITLE: ClassVar = "SAPO"
    FORMULA: ClassVar = "f(r) A, f(x) = 4/τ sigmoid(τ (x − 1)), r = target / behaviour; τ by the sign of A"
    SOURCE: ClassVar = "2511.20347"
    READING: ClassVar = "mean over all tokens; nothing is clipped, so the clip share is 0"

    def terms(self, tokens: Tokens, bounds: Bounds = ()) -> Terms:
        advantages = tokens.advantages
        tau = (advantages > 0).to(advantages.dtype) * (self.tau_positive - self.tau_negative) + self.tau_negative
        gate = (tau * (tokens.target_to_behaviour().exp() - 1.0)).sigmoid() * 4.0 / tau
        return Terms(gate * advantages, tokens.mask.new_zeros(tokens.mask.shape))
