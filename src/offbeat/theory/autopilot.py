"""A controller that keeps a run inside both constraints by the cheapest lever that can act: pure, step by step.

Pressure 1 is a constraint reached: mismatch over its level (the staleness side, S eta G_upd against R_batch), drift
over R_crit where that is known (the horizon side), cosine over its alarm where there is one. Above `high` the
cheapest lever that suffices is pulled: projection (where gradients are so aligned that taking the alignment away is
enough), then the learning rate (by as many halves as the pressure asks for, which is proportional to it), then the
staleness bound K. Below `low` they are let go again: projection, then the costliest first.
*Hysteresis invariant*: between two decisions lie at least `settle` steps (`window` where a letting go is taken back),
tightening and letting go need pressures that are apart, and each letting go taken back makes the next twice as slow.
*Fold invariant*: state and decisions are a function of the readings alone: a resumed run folds them from its log.
Source: the two-constraint rule of arXiv 2607.01083; the controller is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from offbeat.theory.fits import median

WINDOW = 8
SETTLE = 16
BACK_OFF = 2
"""How much slower every letting go becomes that had to be taken back."""
Lever = Literal["projection", "learning rate", "staleness"]


@dataclass(frozen=True, slots=True)
class AutopilotSettings:
    """Constraints and manners. Steps are publishes."""

    level: float
    """Mismatch of behaviour and target that counts as the constraint: log(1 + clip) for a clipped objective."""
    r_crit: float | None = None
    alarm: float | None = 0.5
    high: float = 0.8
    low: float = 0.3
    window: int = WINDOW
    """Pressures are medians over so many steps, so that no single batch decides."""
    settle: int = SETTLE
    """Steps between decisions: as old as data may be, and a window more, so that what is judged was all sampled after
    the last one."""
    patience: int = 48
    """Steps below `low` before anything is let go."""
    strengths: tuple[float, ...] = (0.0, 0.5, 1.0)
    rate_factor: float = 0.5
    least_rate: float = 1 / 16
    most_staleness: int = 64
    least_staleness: int = 1


@dataclass(frozen=True, slots=True)
class Reading:
    """What one step showed. `cosine` of consecutive raw gradients, None where it is not valid; `drift` from the start,
    None where not known."""

    mismatch: float
    cosine: float | None
    drift: float | None = None


@dataclass(frozen=True, slots=True)
class Levers:
    """`strength` in [0, 1] of the projection, `rate` a factor of the learning rate, `staleness` the bound K."""

    strength: float
    rate: float
    staleness: int

    def cap(self, c_low: float) -> float:
        """The cosine that projection at this strength leaves: 1 (nothing is done) down to `c_low`."""
        return 1.0 - self.strength * (1.0 - c_low)


@dataclass(frozen=True, slots=True)
class Decision:
    """A lever moved at `step`, from one value to another, and why."""

    step: int
    lever: Lever
    before: float
    after: float
    pressure: float
    reason: str


@dataclass(frozen=True, slots=True)
class State:
    """Everything that is known: the steps seen, the last `window` of them, the levers, steps since a decision and
    steps in a row below `low`, what the last decision let go of, and how often that had to be taken back."""

    levers: Levers
    step: int = 0
    recent: tuple[Reading, ...] = ()
    since: int = 0
    calm: int = 0
    let_go: Lever | None = None
    regrets: int = 0


def settling(staleness: int) -> int:
    """How many steps after a decision it can be judged, where data is up to so old."""
    return max(SETTLE, staleness + WINDOW)


def begin(settings: AutopilotSettings) -> State:
    """Nothing is held back yet, and the first decision waits for nothing but a full window."""
    return State(Levers(settings.strengths[0], 1.0, settings.most_staleness), since=settings.settle)


def advance(state: State, seen: Reading, settings: AutopilotSettings) -> tuple[State, Decision | None]:
    """Take up one step; at most one lever moves."""
    recent = (*state.recent, seen)[-settings.window :]
    pressure, side = pressure_of(recent, settings)
    calm = state.calm + 1 if pressure < settings.low else 0
    now = replace(state, step=state.step + 1, recent=recent, since=state.since + 1, calm=calm)
    taking_back = now.let_go is not None and pressure > settings.high
    if now.since < (settings.window if taking_back else settings.settle) or len(recent) < settings.window:
        return now, None
    moved: tuple[Lever, Levers] | None = None
    regrets = now.regrets
    if pressure > settings.high:
        moved, why = _tightened(now.levers, settings.high / pressure, recent, settings, now.let_go), "above"
        regrets += now.let_go is not None
    elif calm >= settings.patience * BACK_OFF**regrets:
        moved, why = _let_go(now.levers, settings), "below"
    if moved is None:
        return now, None
    lever, levers = moved
    before, after = _value(now.levers, lever), _value(levers, lever)
    bound = settings.high if why == "above" else settings.low
    reason = f"{side} pressure {pressure:.2f} {why} {bound:g}: {lever} {before:g} -> {after:g}"
    now = replace(now, levers=levers, since=0, calm=0, let_go=lever if why == "below" else None, regrets=regrets)
    return now, Decision(now.step - 1, lever, before, after, pressure, reason)


def fold(steps: Iterable[Reading], settings: AutopilotSettings) -> tuple[State, list[Decision]]:
    """The state after these steps and every decision on the way: how a run is resumed."""
    state, decisions = begin(settings), []
    for seen in steps:
        state, decision = advance(state, seen, settings)
        if decision is not None:
            decisions.append(decision)
    return state, decisions


def pressure_of(recent: tuple[Reading, ...], settings: AutopilotSettings) -> tuple[float, str]:
    """The largest pressure and the side it comes from."""
    found = [(median([seen.mismatch for seen in recent]) / settings.level, "staleness")]
    drift = recent[-1].drift
    if settings.r_crit is not None and drift is not None:
        found.append((drift / settings.r_crit, "horizon"))
    cosine = _cosine(recent)
    if settings.alarm is not None and cosine is not None:
        found.append((cosine / settings.alarm, "alignment"))
    return max(found)


def _cosine(recent: tuple[Reading, ...]) -> float | None:
    known = [seen.cosine for seen in recent if seen.cosine is not None]
    return median(known) if known else None


def projection_share(cosine: float) -> float:
    """How far steps with nothing in common come, as a share of as many whose neighbours have this cosine: of long sums
    sqrt((1 - c) / (1 + c)), where correlations fall geometrically with the lag (`laws.correlated_reach`)."""
    c = min(1.0, max(0.0, cosine))
    return math.sqrt((1 - c) / (1 + c))


def _tightened(
    levers: Levers, wanted: float, recent: tuple[Reading, ...], settings: AutopilotSettings, let_go: Lever | None
) -> tuple[Lever, Levers] | None:
    """The cheapest lever that suffices, `wanted` being the share of the pressure that may stay; not projection where
    it was what was let go: it held, but did not mend."""
    cosine = _cosine(recent)
    stronger = [strength for strength in settings.strengths if strength > levers.strength]
    if stronger and let_go != "projection" and cosine is not None and projection_share(cosine) <= wanted:
        return "projection", replace(levers, strength=stronger[0])
    if levers.rate > settings.least_rate:
        rate = levers.rate * settings.rate_factor
        while rate > max(settings.least_rate, levers.rate * wanted):
            rate *= settings.rate_factor
        return "learning rate", replace(levers, rate=max(settings.least_rate, rate))
    if levers.staleness > settings.least_staleness:
        return "staleness", replace(levers, staleness=max(settings.least_staleness, levers.staleness // 2))
    return None


def _let_go(levers: Levers, settings: AutopilotSettings) -> tuple[Lever, Levers] | None:
    """Projection first: while it hides the pressure, nothing behind it can be judged. Then the costliest."""
    weaker = [strength for strength in settings.strengths if strength < levers.strength]
    if weaker:
        return "projection", replace(levers, strength=weaker[-1])
    if levers.staleness < settings.most_staleness:
        return "staleness", replace(levers, staleness=min(settings.most_staleness, 2 * levers.staleness))
    if levers.rate < 1.0:
        return "learning rate", replace(levers, rate=min(1.0, levers.rate / settings.rate_factor))
    return None


def _value(levers: Levers, lever: Lever) -> float:
    match lever:
        case "projection":
            return levers.strength
        case "learning rate":
            return levers.rate
        case "staleness":
            return float(levers.staleness)
