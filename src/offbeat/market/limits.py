"""What a market's numbers may be; every breach is one line (SettingsError), raised before anything changes."""

from __future__ import annotations

import numpy as np

from offbeat.errors import SettingsError
from offbeat.market.clocks import Numbers
from offbeat.market.demand import Array
from offbeat.market.industry import Industry


def check_box(box: tuple[float, float], industry: Industry) -> tuple[float, float]:
    """`box` as it is if prices in it make sense for the industry, else SettingsError."""
    low, high = box
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise SettingsError(f"box: [{low}, {high}] must be two finite prices, the lower first")
    worst = max(industry.cost)
    if worst >= high:
        raise SettingsError(
            f"cost: {worst} is not below the highest price allowed, {high}; raise the box or lower the cost"
        )
    industry.demand.check(low)
    return float(low), float(high)


def checked_rates(rho: Numbers, markets: int) -> Array:
    rates = np.asarray(rho, dtype=np.float64)
    if not (np.isfinite(rates).all() and (rates >= 0).all()):
        raise SettingsError("rho: every discount rate must be a finite number, 0 or more")
    if rates.ndim and rates.shape != (markets,):
        raise SettingsError(f"rho: shape {rates.shape}; give one number, or one for each of {markets} markets")
    return np.broadcast_to(rates, (markets,)).copy()


def checked_initial(initial: Array, shape: tuple[int, int], box: tuple[float, float]) -> Array:
    """Initial prices (n, M) from (n,) or (n, M)."""
    values = np.asarray(initial, dtype=np.float64)
    if values.ndim == 1:
        values = values[:, None]
    if values.shape not in ((shape[0], 1), shape):
        raise SettingsError(f"initial: shape {np.shape(initial)}; give ({shape[0]},) or {shape}")
    low, high = box
    if not ((values >= low) & (values <= high)).all():
        raise SettingsError(f"initial: prices must lie in the box [{low}, {high}]")
    return np.broadcast_to(values, shape).copy()


def check_prices(prices: Array, rows: int, box: tuple[float, float]) -> None:
    """Posted prices: one a row, each a number inside the box."""
    if prices.shape != (rows,):
        raise SettingsError(f"prices: shape {prices.shape}, the decision has {rows} rows; give one price a row")
    low, high = box
    if rows and not (prices.min() >= low and prices.max() <= high):
        wrong = prices[~((prices >= low) & (prices <= high))][0]
        raise SettingsError(f"prices: {wrong} is outside the box [{low}, {high}]; clip what a policy says")
