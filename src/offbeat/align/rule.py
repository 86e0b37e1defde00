"""The rule of gradient alignment control: a cosine in, a regime and a gain out. Plain floats.

*Descent invariant*: 0 <= gain <= 1, so the controlled gradient never points against the gradient it came from:
<controlled, g> = |g|^2 (gain c^2 + 1 - c^2) >= 0. *Validity invariant*: no cosine (None) is never a cosine of 0.
Source: GAC (arXiv 2603.01501) for projection and skip; which gain applies between the thresholds, and the thresholds,
are not public, so every choice is a setting. Knows no tensor, no optimizer and no file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal, get_args

Mode = Literal["off", "observe", "orth", "cap", "ratio", "ramp"]
Reference = Literal["raw", "applied"]
OnSkip = Literal["update", "keep"]
Direction = Literal["previous", "none", "random"]
Clip = Literal["after", "before"]
History = Literal["float32", "bfloat16"]
Regime = Literal["invalid", "observed", "safe", "projected", "skipped", "released"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignSettings:
    """All that can be chosen. Raises ValueError, one line, for what cannot be.

    Safe up to `c_low`, projected up to `c_high`, skipped above it; `c_high` = 1 never skips. The defaults are the
    measured first guesses of offbeat, not the paper's numbers.
    """

    mode: Mode = "cap"
    """`off`: nothing is attached. `observe`: measured, not changed. The others name the gain, see `gain`."""
    c_low: float = 0.05
    c_high: float = 0.5
    two_sided: bool = False
    """Judge |c| and not c, so that opposing gradients are controlled, too."""
    max_skips: int = 4
    """Watchdog: after so many skips in a row a step is projected and taken all the same. 0: no watchdog."""
    reference: Reference = "raw"
    """What the next gradient is compared with: this one before control (`raw`) or after it (`applied`)."""
    on_skip: OnSkip = "update"
    """Does a skipped step's gradient become the reference (`update`), or does the older one stay (`keep`)?"""
    direction: Direction = "previous"
    """`previous` is GAC. `none` and `random` are its controls: they shrink the gradient as much, `none` without turning
    it, `random` turning it as far but into a random direction."""
    rescale: bool = False
    """Give the controlled gradient the norm of the gradient it came from."""
    max_norm: float | None = None
    """Clip the norm of the gradient to this; None leaves clipping to the caller."""
    clip: Clip = "after"
    """Does `max_norm` bound the controlled gradient (`after`), or the gradient before control (`before`)?"""
    history: History = "float32"
    """How earlier gradients are kept."""
    offload: bool = False
    """Keep them in host memory."""
    update_cosine: bool = True
    """Also measure the cosine of consecutive parameter updates; costs a copy of the parameters and one update."""
    lags: tuple[int, ...] = ()
    """Also measure the cosine with the raw gradients so many steps back; costs max(lags) copies of the gradient."""
    seed: int = 0
    """Of `direction` = random."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "lags", tuple(sorted(set(self.lags))))
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} = {getattr(self, name)!r}: use one of {', '.join(allowed)}")
        if not 0 <= self.c_low < self.c_high <= 1:
            raise ValueError(f"c_low = {self.c_low}, c_high = {self.c_high}: expected 0 <= c_low < c_high <= 1")
        if self.max_skips < 0:
            raise ValueError(f"max_skips = {self.max_skips}: expected 0 (no watchdog) or more")
        if self.max_norm is not None and not self.max_norm > 0:
            raise ValueError(f"max_norm = {self.max_norm}: expected a positive number, or None")
        if self.lags and self.lags[0] < 1:
            raise ValueError(f"lags = {self.lags}: a lag is 1 step or more")


_CHOICES: dict[str, tuple[str, ...]] = {
    "mode": get_args(Mode), "reference": get_args(Reference), "on_skip": get_args(OnSkip),
    "direction": get_args(Direction), "clip": get_args(Clip), "history": get_args(History),
}  # fmt: skip
SETTINGS = tuple(field.name for field in fields(AlignSettings))


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a gradient: `gain` multiplies its part along the reference."""

    regime: Regime
    gain: float


def gain(settings: AlignSettings, cosine: float) -> float:
    """The factor, in [0, 1], of the part of the gradient along the reference, for |cosine| > c_low.

    `orth` 0; `cap` what makes the cosine afterwards exactly c_low; `ratio` c_low / c; `ramp` falls linearly from 1 at
    c_low to 0 at c_high.
    """
    c, low = min(1.0, abs(cosine)), settings.c_low
    if c <= low:
        return 1.0
    match settings.mode:
        case "orth":
            return 0.0
        case "cap":
            return low * math.sqrt(1 - c * c) / (c * math.sqrt(1 - low * low))
        case "ratio":
            return low / c
        case "ramp":
            return max(0.0, (settings.c_high - c) / (settings.c_high - low))
        case _:
            return 1.0


def decide(settings: AlignSettings, cosine: float | None, skips: int) -> Decision:
    """The regime of a step whose gradient has this cosine with the reference, after `skips` skips in a row.

    None is a cosine that is not valid: the first step, one after a step that is missing, a gradient of 0 or one that
    is not finite. Such a gradient passes unchanged.
    """
    if cosine is None:
        return Decision("invalid", 1.0)
    if settings.mode in ("off", "observe"):
        return Decision("observed", 1.0)
    judged = abs(cosine) if settings.two_sided else cosine
    if judged <= settings.c_low:
        return Decision("safe", 1.0)
    if judged <= settings.c_high:
        return Decision("projected", gain(settings, cosine))
    if settings.max_skips and skips >= settings.max_skips:
        return Decision("released", gain(settings, cosine))
    return Decision("skipped", 0.0)


def kept(cosine: float, gain: float) -> float:
    """Norm of the controlled gradient over that of the gradient: sqrt(gain^2 c^2 + 1 - c^2)."""
    c = min(1.0, abs(cosine))
    return math.sqrt(max(0.0, gain * gain * c * c + (1 - c) * (1 + c)))


def cosine_after(cosine: float, gain: float) -> float | None:
    """Cosine of the controlled gradient with the reference; None where nothing of it is left."""
    norm = kept(cosine, gain)
    return None if norm == 0 else gain * cosine / norm


def cosine_of(dot: float, left_square: float, right_square: float) -> float | None:
    """<a, b> / (|a| |b|) from the three sums, in [-1, 1]; None unless all are finite and both norms positive."""
    if not all(map(math.isfinite, (dot, left_square, right_square))) or not (left_square > 0 and right_square > 0):
        return None
    return max(-1.0, min(1.0, dot / (math.sqrt(left_square) * math.sqrt(right_square))))


def lags_up_to(staleness: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to the staleness S (in optimizer steps), S itself, S + 1 and 2 S: where stale alignment shows."""
    powers: Iterable[int] = (2**k for k in range(max(1, staleness).bit_length()))
    return tuple(sorted({1, *powers, *((staleness, staleness + 1, 2 * staleness) if staleness > 0 else ())}))
