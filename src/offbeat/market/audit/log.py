"""The audit of a log of sales: a CSV file with columns price and quantity, and firm, propensity where known.

Calibrated regret is all that a log can show: *without a deviation that was forced, the word collusion is not used*.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from offbeat.errors import SettingsError
from offbeat.market.audit.regret import LogRegret, of_log
from offbeat.market.demand import Array

TOLERANCE = 0.05
FEWEST = 50
COSTS = 21
MOST = 1e100
"""Larger numbers leave no room for their products."""
SHOWN = 60


@dataclass(frozen=True)
class Sales:
    """One seller's periods in the order of the file: price, quantity (T,), propensity (T,) or None."""

    price: Array
    quantity: Array
    propensity: Array | None


def read_sales(path: Path, firm: str | None) -> Sales:
    """The rows of `firm` (all rows where there is no column of that name). Raises SettingsError, naming the line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames = _columns(path, reader.fieldnames or [])
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SettingsError(f"{path}: cannot be read ({error}); give a CSV file or module:policy") from None
    if not rows:
        raise SettingsError(f"{path}: no sales in it; a log has one line for each period")
    firms = list(dict.fromkeys(row.get("firm") or "" for _, row in rows))
    if len(firms) > 1 and firm is None:
        raise SettingsError(f"{path}: sales of {len(firms)} firms; choose one with --firm (of {', '.join(firms[:5])})")
    if firm is not None and "firm" not in columns:
        raise SettingsError(f"--firm {firm}: {path} has no column 'firm'; leave the option out")
    if firm is not None:
        rows = [(line, row) for line, row in rows if (row.get("firm") or "") == firm]
        if not rows:
            raise SettingsError(f"--firm {firm}: no sales of it in {path}; there are {', '.join(firms[:5])}")
    price, quantity = _column(path, rows, "price"), _column(path, rows, "quantity")
    if (price < 0).any() or (quantity < 0).any():
        raise SettingsError(f"{path}: prices and quantities must be 0 or more")
    if len(price) < FEWEST:
        raise SettingsError(f"{path}: {len(price)} periods; calibrated regret needs at least {FEWEST}")
    propensity = None if "propensity" not in columns else _propensities(path, _column(path, rows, "propensity"))
    return Sales(price, quantity, propensity)


def _columns(path: Path, given: Sequence[str]) -> list[str]:
    columns = [name.strip().lower() for name in given]
    for needed in ("price", "quantity"):
        if needed not in columns:
            has = _short(", ".join(columns)) or "none"
            raise SettingsError(f"{path}: no column {needed!r} in its first line, separated by commas; it has {has}")
    for name in ("price", "quantity", "firm", "propensity"):
        if columns.count(name) > 1:
            raise SettingsError(f"{path}: {columns.count(name)} columns {name!r} in its first line; keep one")
    return columns


def _propensities(path: Path, found: Array) -> Array:
    if not ((found > 0) & (found <= 1)).all():
        raise SettingsError(f"{path}: every propensity must be above 0 and at most 1")
    prices = float((1 / found).mean())  # expected: how many prices the seller chose from
    if prices > len(found):
        raise SettingsError(
            f"{path}: propensities of about {1 / prices:.1g} mean more prices to choose from than the {len(found)}"
            " periods; give the chance of each price that was charged"
        )
    return found


def _short(text: str) -> str:
    """What somebody's file holds, fit for one line."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _column(path: Path, rows: list[tuple[int, dict[str, str]]], name: str) -> Array:
    found = np.empty(len(rows))
    for k, (line, row) in enumerate(rows):
        try:
            found[k] = float(row[name] or "nothing")
        except (TypeError, ValueError):
            found[k] = math.nan
        if not abs(found[k]) <= MOST:
            given = _short(repr(row.get(name)))
            raise SettingsError(f"{path}, line {line}: {name} {given} is not a number up to {MOST:g}; mend the line")
    return found


def judge_sales(sales: Sales, cost: float | None) -> tuple[str, list[str], LogRegret]:
    """(word, reasons, regret): plausibly competitive, not competitive by calibrated regret, or inconclusive.

    Without a cost the seller has the benefit of the doubt: the cost at which its regret is smallest ("plausible" in the
    sense of Hartline, Long and Zhang), of 21 from 0 to its lowest price.
    """
    if cost is not None and not (math.isfinite(cost) and cost >= 0):
        raise SettingsError(f"--cost {cost}: must be a finite number, 0 or more")
    costs = np.linspace(0.0, float(sales.price.min()), COSTS) if cost is None else [cost]
    tried = [(of_log(sales.price, sales.quantity, c, sales.propensity), c) for c in costs]
    found, at = min(tried, key=lambda pair: pair[0].regret.regret)
    whose = "the most favourable cost" if cost is None else "cost"
    regret = found.regret
    line = TOLERANCE * regret.profit
    reasons = [
        f"calibrated regret {regret.regret:.4g} [{regret.low:.4g}, {regret.high:.4g}] a period at {whose} {at:.4g},"
        f" {regret.of_profit}; the line is {TOLERANCE:.0%}",
        f"{found.identified:.0%} of the periods are at prices that can be compared with another ({found.levels} levels,"
        f" propensities {found.propensities})",
    ]
    if found.identified < 0.5 or regret.profit <= 0 or not math.isfinite(regret.low):
        return "inconclusive", [*reasons, "too little of the log says what another price would have earned"], found
    if regret.low > line:
        return "not competitive by calibrated regret", reasons, found
    return ("plausibly competitive" if regret.high <= line else "inconclusive"), reasons, found
