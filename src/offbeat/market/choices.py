"""Industries, clocks and latencies by name, as a command line or a settings file says them. Every wrong value is one
line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from offbeat.errors import SettingsError
from offbeat.market.clocks import Clock
from offbeat.market.demand import Ces, Demand, Homogeneous, Hotelling, Linear, Logit
from offbeat.market.industry import Industry
from offbeat.market.quotes import Latency

DEMANDS: dict[str, tuple[Callable[..., Demand], tuple[str, ...], float | None, float]] = {
    "logit": (Logit, ("mu", "outside"), 2.0, 1.0),
    "linear": (Linear, ("substitution",), 1.0, 0.0),
    "hotelling": (Hotelling, ("transport",), 1.75, 0.0),
    "ces": (Ces, ("elasticity", "income", "outside"), 0.0, 1.0),
    "homogeneous": (Homogeneous, ("intercept",), None, 0.0),
}
"""Model, its own parameters, quality of a firm and cost of a firm where none are given."""


def industry_from(
    demand: str, quality: Sequence[float] | None, cost: Sequence[float] | None, **parameters: float | None
) -> Industry:
    """An industry; the number of firms is that of `quality` or `cost`, 2 without either. `parameters` None count as
    not given.
    """
    if demand not in DEMANDS:
        raise SettingsError(f"demand: no model {demand!r}; there are {', '.join(DEMANDS)}")
    model, own, usual_quality, usual_cost = DEMANDS[demand]
    given = {name: value for name, value in parameters.items() if value is not None}
    for name in given:
        if name not in own:
            raise SettingsError(f"{name}: {demand} demand has no such parameter; it has {', '.join(own)}")
    firms = len(quality or cost or (0, 0))
    costs = tuple(cost or (usual_cost,) * firms)
    if usual_quality is None:
        if quality:
            raise SettingsError(f"quality: {demand} demand has one good; give costs only")
        return Industry(model(number=len(costs), **given), costs)
    return Industry(model(tuple(quality or (usual_quality,) * firms), **given), costs)


ClockName = Literal["poisson", "alternating", "common", "common-poisson"]


def clock_from(name: str, firms: int, rate: Sequence[float]) -> Clock:
    """A clock of one rate, or for Poisson clocks one for each firm."""
    if len(rate) not in (1, firms) or (len(rate) > 1 and name != "poisson"):
        raise SettingsError(
            f"rate: {len(rate)} rates for {firms} firms with {name} clocks; give one, or one for each firm"
        )
    for value in rate:
        if not value > 0:
            raise SettingsError(f"rate: {value} must be a finite number above 0")
    if name == "poisson":
        return Clock.poisson(*(rate if len(rate) == firms else [rate[0]] * firms))
    if name == "alternating":
        return Clock.alternating(firms, rate[0])
    if name == "common":
        return Clock.common(rate[0])
    if name == "common-poisson":
        return Clock.common_poisson(rate[0])
    raise SettingsError(f"clock: no clock {name!r}; there are poisson, alternating, common, common-poisson")


def latency_from(mean: float, law: str) -> Latency:
    """A latency alike for all pairs."""
    if law not in ("constant", "uniform", "exponential"):
        raise SettingsError(f"latency-law: no law {law!r}; there are constant, uniform, exponential")
    return Latency(mean, law)  # type: ignore[arg-type]
