"""Demand: how much each firm sells per unit of time at given prices. Five models, one interface.

Arrays are firm-major: prices are (n, ...) and quantities come back in that shape; trailing axes are independent
markets. `level` is the state of a demand shock, 0 at rest; it adds to the quality (or the intercept) of every inside
good. A demand model knows neither costs nor time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import SettingsError

Array = NDArray[np.float64]
OVERFLOW = 600.0
"""Largest exponent allowed at the lowest price; beyond it exp overflows."""


class Demand(Protocol):
    """What a market and a solver ask of a demand model."""

    @property
    def firms(self) -> int:
        """Number of firms n."""
        ...

    def quantities(self, prices: Array, level: Array | float = 0.0) -> Array:
        """Quantity flow of each firm, units per unit of time; shape of `prices` (n, ...)."""
        ...

    def check(self, low: float) -> None:
        """Raise SettingsError where prices down to `low` cannot be evaluated."""
        ...


def _column(values: tuple[float, ...], prices: Array) -> Array:
    """(n,) parameters against (n, ...) prices."""
    return np.asarray(values, dtype=np.float64).reshape(-1, *([1] * (prices.ndim - 1)))


def _finite(name: str, values: tuple[float, ...]) -> None:
    for value in values:
        if not np.isfinite(value):
            raise SettingsError(f"{name}: {value} is not a finite number; give one for each firm")


def _positive(name: str, value: float) -> None:
    if not (np.isfinite(value) and value > 0):
        raise SettingsError(f"{name}: {value} must be a finite number above 0")


@dataclass(frozen=True)
class Logit:
    """Multinomial logit with an outside good: q_i = e^{(a_i-p_i)/mu} / (sum_j e^{(a_j-p_j)/mu} + e^{a_0/mu}).

    Calvano et al., AER 110(10) 2020, equation 5. `outside` a_0 may be -inf: no outside good.
    """

    quality: tuple[float, ...] = (2.0, 2.0)
    mu: float = 0.25
    outside: float = 0.0

    def __post_init__(self) -> None:
        _finite("quality", self.quality)
        _positive("mu", self.mu)
        if np.isnan(self.outside) or self.outside == np.inf:
            raise SettingsError(f"outside: {self.outside} must be a number, or -inf for no outside good")

    @property
    def firms(self) -> int:
        return len(self.quality)

    def quantities(self, prices: Array, level: Array | float = 0.0) -> Array:
        outside = self.outside if np.isfinite(self.outside) else 0.0
        drawn = prices * (-1.0 / self.mu)
        drawn += (_column(self.quality, prices) - outside) / self.mu
        if np.ndim(level) or level:
            drawn += np.asarray(level) / self.mu
        np.exp(drawn, out=drawn)
        total = drawn[0] + (1.0 if np.isfinite(self.outside) else 0.0)
        for row in drawn[1:]:
            total = total + row
        drawn /= total
        return drawn

    def check(self, low: float) -> None:
        outside = self.outside if np.isfinite(self.outside) else 0.0
        if (max(self.quality) - low - outside) / self.mu > OVERFLOW:
            raise SettingsError(
                f"mu: {self.mu} is too small for quality {max(self.quality)} at a price of {low}; raise it"
            )


@dataclass(frozen=True)
class Linear:
    """Singh and Vives (RAND 15(4) 1984): inverse demand p_i = a_i - q_i - d sum_{j != i} q_j, 0 <= d < 1.

    A firm priced out sells nothing and the others share the demand that is left (the corner of the same utility).
    """

    quality: tuple[float, ...] = (1.0, 1.0)
    substitution: float = 0.25

    def __post_init__(self) -> None:
        _finite("quality", self.quality)
        if not 0 <= self.substitution < 1:
            raise SettingsError(f"substitution: {self.substitution} must be at least 0 and below 1")

    @property
    def firms(self) -> int:
        return len(self.quality)

    def quantities(self, prices: Array, level: Array | float = 0.0) -> Array:
        d = self.substitution
        surplus = _column(self.quality, prices) + np.asarray(level) - prices
        active = surplus > 0
        sold = np.zeros_like(surplus)
        for _ in range(self.firms):
            count = active.sum(axis=0)
            total = np.where(active, surplus, 0.0).sum(axis=0)
            sold = np.where(active, (surplus - d * total / (1 + (count - 1) * d)) / (1 - d), 0.0)
            active = sold > 0
        return np.asarray(np.maximum(sold, 0.0))

    def check(self, low: float) -> None:
        del low


@dataclass(frozen=True)
class Hotelling:
    """Two firms at the ends of a line of length 1; value v_i, transport cost `transport` per unit of way; buyers may
    stay away.
    """

    quality: tuple[float, ...] = (1.75, 1.75)
    transport: float = 1.0

    def __post_init__(self) -> None:
        _finite("quality", self.quality)
        _positive("transport", self.transport)
        if len(self.quality) != 2:
            raise SettingsError(f"quality: the Hotelling line has 2 firms, not {len(self.quality)}")

    @property
    def firms(self) -> int:
        return 2

    def quantities(self, prices: Array, level: Array | float = 0.0) -> Array:
        surplus = (_column(self.quality, prices) + np.asarray(level) - prices) / self.transport
        reach = 0.5 + 0.5 * (surplus - surplus[::-1])
        return np.asarray(np.clip(np.minimum(reach, surplus), 0.0, 1.0))

    def check(self, low: float) -> None:
        del low


@dataclass(frozen=True)
class Ces:
    """Constant elasticity of substitution s > 1: p_i q_i = Y w_i p_i^{1-s} / (sum_j w_j p_j^{1-s} + w_0); weights w_i
    = e^{quality_i}.

    `outside` is w_0; it must be above 0 for a finite joint-profit price.
    """

    quality: tuple[float, ...] = (0.0, 0.0)
    elasticity: float = 4.0
    income: float = 1.0
    outside: float = 1.0

    def __post_init__(self) -> None:
        _finite("quality", self.quality)
        _positive("income", self.income)
        if not (np.isfinite(self.elasticity) and self.elasticity > 1):
            raise SettingsError(f"elasticity: {self.elasticity} must be above 1")
        if not (np.isfinite(self.outside) and self.outside >= 0):
            raise SettingsError(f"outside: {self.outside} must be 0 or more")

    @property
    def firms(self) -> int:
        return len(self.quality)

    def quantities(self, prices: Array, level: Array | float = 0.0) -> Array:
        weight = np.exp(_column(self.quality, prices) + np.asarray(level))
        spent = weight * prices ** (1.0 - self.elasticity)
        return np.asarray(self.income * spent / (spent.sum(axis=0) + self.outside) / prices)

    def check(self, low: float) -> None:
        if not low > 0:
            raise SettingsError(f"box: CES demand needs prices above 0, the lowest is {low}")


@dataclass(frozen=True)
class Homogeneous:
    """One good: the cheapest firms share the demand max(0, a - p) equally (Klein, RAND 52(3) 2021, with a = 1)."""

    intercept: float = 1.0
    number: int = 2

    def __post_init__(self) -> None:
        _positive("intercept", self.intercept)
        if self.number < 1:
            raise SettingsError(f"number: {self.number} firms; there must be at least 1")

    @property
    def firms(self) -> int:
        return self.number

    def quantities(self, prices: Array, level: Array | float = 0.0) -> Array:
        lowest = prices.min(axis=0)
        cheapest = prices == lowest
        return np.where(
            cheapest, np.maximum(self.intercept + np.asarray(level) - lowest, 0.0) / cheapest.sum(axis=0), 0.0
        )

    def check(self, low: float) -> None:
        del low
