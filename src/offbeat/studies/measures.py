"""What a cell may be asked to do, by the name of its kind. Imports torch; only worker processes do.

Invariant: a measure takes a cell, the directory of the start policy and somebody to tell how far it is, and returns
plain values.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from offbeat.studies.cell import Cell, Result
from offbeat.studies.cycle import bias
from offbeat.studies.training import train

Say = Callable[[int, int], None]
Measure = Callable[[Cell, Path, Say], dict[str, Any]]


def _train(cell: Cell, policy: Path, say: Say) -> dict[str, Any]:
    return dict(msgspec.to_builtins(train(cell, policy, say)))


MEASURES: dict[str, Measure] = {"train": _train, "bias": bias}


def measure(cell: Cell, policy: Path, say: Say) -> Result:
    """Do what the cell asks for. Raises OffbeatError where a part refuses."""
    started = time.process_time()
    values = MEASURES[cell.kind](cell, policy, say)
    return Result(time.process_time() - started, values)
