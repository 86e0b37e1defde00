"""A study from its name to its page: cells, those missing made, findings computed from all of them.

A study is a `Design`: which cells, and what is concluded from their results. Both are pure; the same results give the
same findings and the same page. This file knows directories and processes through other files only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from offbeat.errors import SettingsError
from offbeat.locks import hold
from offbeat.models import prepare_policy
from offbeat.report.style import Figure
from offbeat.studies.cell import Cell, Result
from offbeat.studies.store import Finished, Store
from offbeat.studies.workers import WORKERS_LOG, run_cells

Results = Sequence[tuple[Cell, dict[str, Any]]]
"""Each cell of the grid with the values it gave."""
LOCK = "lock"
FEWEST_SEEDS = 5
"""Fewer are a look, not evidence; the page and the JSON say so."""


@dataclass(frozen=True)
class Findings:
    """What a study found: `values` for machines, `verdicts` as sentences that a rule made, figures and tables for the
    page. A table is (title, caption, head, rows, number of leading columns that are numbers)."""

    title: str
    lead: str
    values: dict[str, Any]
    verdicts: list[str]
    figures: list[Figure]
    tables: list[tuple[str, str, list[str], list[list[str]], int]]


class Design(Protocol):
    """One study."""

    name: str

    def cells(self, seeds: int, smoke: bool) -> list[Cell]:
        """The grid, in the order in which cells are run: seed by seed, so that an early end leaves whole seeds."""

    def findings(self, results: Results, smoke: bool) -> Findings:
        """What the results say. Raises ValueError where they say nothing."""


@dataclass(frozen=True)
class Outcome:
    """A finished study. `core_seconds` are those of its cells, whenever they were run."""

    design: str
    directory: Path
    cells: int
    seeds: int
    smoke: bool
    core_seconds: float
    findings: Findings
    first_seed: int = 0

    @property
    def caution(self) -> str | None:
        """Why this is no evidence; None where it is."""
        if self.smoke:
            return "Not evidence: a smoke run, far too short."
        few = f"{self.seeds} seed{'s' if self.seeds > 1 else ''}, fewer than {FEWEST_SEEDS}"
        return f"Not evidence: {few}." if self.seeds < FEWEST_SEEDS else None

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.design,
            "cells": self.cells,
            "seeds": self.seeds,
            "first_seed": self.first_seed,
            "smoke": self.smoke,
            "evidence": self.caution is None,
            "core_seconds": self.core_seconds,
            "verdicts": self.findings.verdicts,
            **self.findings.values,
        }


class Observer(Protocol):
    """Who hears how a study gets on."""

    def preparing(self, note: str, share: float) -> None: ...

    def took_over(self, directory: Path, cells: int) -> None: ...

    def begins(self, cells: int, kept: int, steps: int) -> None:
        """`cells` in all, `kept` of them from before; the others have `steps` steps."""

    def stepped(self, cell: Cell, done: int, total: int) -> None: ...

    def finished(self, cell: Cell, seconds: float) -> None: ...


def conduct(
    design: Design,
    directory: Path,
    seeds: int,
    smoke: bool,
    observer: Observer,
    reuse: Sequence[Path] = (),
    workers: int | None = None,
    first_seed: int = 0,
) -> Outcome:
    """Make what is missing of a study and conclude. Give the same directory again to go on where it stopped.

    Its seeds are `first_seed` and those that follow: a study is repeated on others. `reuse`: directories of other
    studies, of which cells that are the same are taken over. `workers`: processes of one thread each, as many as there
    are cores unless said. Raises SettingsError or RunDirectoryError for wrong input, TaskError where the start policy
    cannot be made, RunFailed where a cell fails.
    """
    if seeds < 1:
        raise SettingsError(f"--seeds {seeds}: needs at least 1; 5 or more are evidence")
    planned = [replace(cell, seed=cell.seed + first_seed) for cell in design.cells(seeds, smoke)]
    others = [Finished(other) for other in reuse]
    store = Store(directory)
    lock = None
    try:
        lock = hold(directory / LOCK, f"--out {directory}")
        store.agree("study", design.name, "it holds another study")
        policy = prepare_policy(planned[0].scale.settings(1e-4, 1), observer.preparing)
        digest = weights_digest(policy)
        store.agree("policy", digest, "its cells began with another start policy")
        for other in others:
            observer.took_over(other.directory, store.take_over(other, planned, digest))
        kept = store.results()
        missing = [cell for cell in planned if cell.key not in kept]
        observer.begins(len(planned), len(planned) - len(missing), sum(cell.steps for cell in missing))

        def done(cell: Cell, result: Result) -> None:
            store.add(cell, result)
            observer.finished(cell, result.seconds)

        count = workers or len(os.sched_getaffinity(0))
        run_cells(missing, policy, count, directory / WORKERS_LOG, done, observer.stepped)
        kept = store.results()
    finally:
        store.close()
        if lock is not None:
            os.close(lock)
    results = [(cell, kept[cell.key].values) for cell in planned]
    seconds = sum(kept[cell.key].seconds for cell in planned)
    found = design.findings(results, smoke)
    return Outcome(design.name, directory, len(planned), seeds, smoke, seconds, found, first_seed)


def weights_digest(policy: Path) -> str:
    """SHA-256 of the start policy's weights."""
    return hashlib.sha256((policy / "model.safetensors").read_bytes()).hexdigest()


def by_seed(cells: Sequence[Cell]) -> list[Cell]:
    """Cells in running order: whole seeds one after the other."""
    return sorted(cells, key=lambda cell: cell.seed)
