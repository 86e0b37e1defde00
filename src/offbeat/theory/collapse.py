"""When has a run collapsed? The criterion declared before any study was run (reference for all of them).

*Reward rule*: the mean reward of the last 10 steps falls below half of its running maximum and does not come back
above that within 50 steps (or before the run ends). It alone decides. Two more rules are recorded beside it: a
gradient norm above 20 times the median of the steps before it, and an entropy below a tenth or above five times its
first value. Entropy also falls when a policy simply becomes good, which is why it does not decide. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offbeat.theory.fits import median


@dataclass(frozen=True, slots=True)
class Criterion:
    """Steps and shares of the three rules."""

    window: int = 10
    share: float = 0.5
    patience: int = 50
    gradient_factor: float = 20.0
    entropy_low: float = 0.1
    entropy_high: float = 5.0


@dataclass(frozen=True, slots=True)
class Collapse:
    """The step at which each rule first said so, None where it never did."""

    by_reward: int | None
    by_gradient: int | None
    by_entropy: int | None

    @property
    def step(self) -> int | None:
        """The step of the rule that decides."""
        return self.by_reward


def collapse(
    rewards: Sequence[float],
    gradient_norms: Sequence[float] = (),
    entropies: Sequence[float] = (),
    criterion: Criterion = Criterion(),
) -> Collapse:
    """Judge a run by its rewards, gradient norms and entropies, one of each a step."""
    return Collapse(
        _by_reward(rewards, criterion), _by_gradient(gradient_norms, criterion), _by_entropy(entropies, criterion)
    )


def is_settled(rewards: Sequence[float], criterion: Criterion = Criterion()) -> bool:
    """Has the run collapsed, with all its steps of patience behind it? Then no further step can take that back."""
    step = _by_reward(rewards, criterion)
    return step is not None and step + criterion.patience < len(rewards)


def onset(rewards: Sequence[float], step: int, criterion: Criterion = Criterion()) -> int:
    """The step with which the stretch of rewards below the level began in which the collapse was noticed, at `step`: a
    mean over a window notices half a window late."""
    level = criterion.share * max(moving_mean(rewards, criterion.window)[criterion.window - 1 : step + 1])
    while step > 0 and rewards[step - 1] < level:
        step -= 1
    return step


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of the last `window` values at each place, of fewer at the beginning."""
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(i + 1, window) for i in range(len(values))]


def _by_reward(rewards: Sequence[float], criterion: Criterion) -> int | None:
    smooth = moving_mean(rewards, criterion.window)
    highest, first = 0.0, criterion.window - 1
    for step in range(first, len(smooth)):
        highest = max(highest, smooth[step])
        level = criterion.share * highest
        if smooth[step] < level and all(later < level for later in smooth[step : step + criterion.patience + 1]):
            return step
    return None


def _by_gradient(norms: Sequence[float], criterion: Criterion) -> int | None:
    for step in range(criterion.window, len(norms)):
        if norms[step] > criterion.gradient_factor * median(norms[:step]):
            return step
    return None


def _by_entropy(entropies: Sequence[float], criterion: Criterion) -> int | None:
    for step, entropy in enumerate(entropies):
        if not criterion.entropy_low * entropies[0] <= entropy <= criterion.entropy_high * entropies[0]:
            return step
    return None
