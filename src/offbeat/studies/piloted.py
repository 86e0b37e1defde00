"""Gradient alignment control and the autopilot in a cell: how its options become an optimizer, and levers a run.

Options of a cell: `align`, settings of `offbeat.align` by name, attached after the watching hooks, so that the cosine
recorded is that of the raw gradient; `autopilot`: true, then the controller of `theory.autopilot` moves projection
strength, learning rate and staleness from step to step; `first_beta`: momentum other than AdamW's 0.9.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from offbeat.align import GAC
from offbeat.learner.step import adamw
from offbeat.settings import LearnerSettings
from offbeat.studies.cell import Cell
from offbeat.studies.instruments import GradientCosines
from offbeat.theory.autopilot import AutopilotSettings, Decision, Levers, Reading, advance, begin, settling

C_LOW = 0.05
"""The cosine that projection at full strength leaves."""


class Controls:
    """Makes a cell's optimizer and moves its levers; without options it only watches."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._gac: GAC | None = None
        self.cosines: GradientCosines | None = None
        self.decisions: list[Decision] = []
        self._settings = AutopilotSettings(
            level=cell.mismatch_level,
            settle=settling(cell.staleness),
            most_staleness=max(1, cell.staleness),
        )
        self._state = begin(self._settings) if cell.options.get("autopilot") else None

    def optimizer(self, parameters: Iterable[nn.Parameter], settings: LearnerSettings) -> torch.optim.Optimizer:
        """AdamW, watched, and controlled where the cell asks for it."""
        made = adamw(parameters, settings)
        for group in made.param_groups:
            group["betas"] = (self._cell.options.get("first_beta", group["betas"][0]), group["betas"][1])
        self.cosines = GradientCosines(made)
        if self._state is not None:
            made.register_step_pre_hook(self._scale_rate)
        chosen = dict(self._cell.options.get("align", {}))
        if self._state is not None:
            chosen |= {"mode": "cap", "c_low": 1 - 1e-6, "c_high": 1.0}
        if chosen:
            self._gac = GAC(made, seed=self._cell.seed, update_cosine=False, **chosen)
        return made

    def _scale_rate(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """The learner sets its rate anew for every iteration, and an iteration of a cell is one update."""
        for group in optimizer.param_groups:
            group["lr"] *= self.levers.rate

    @property
    def levers(self) -> Levers:
        """What holds for the next step; a cell without autopilot has its own staleness and rate."""
        return Levers(0.0, 1.0, self._cell.staleness) if self._state is None else self._state.levers

    def saw(self, mismatch: float, cosine: float | None) -> None:
        """Take up a step; the levers for the next may be others."""
        if self._state is None:
            return
        self._state, decision = advance(self._state, Reading(mismatch, cosine), self._settings)
        if decision is not None:
            self.decisions.append(decision)
            if self._gac is not None:
                cap = min(1 - 1e-6, self._state.levers.cap(C_LOW))
                self._gac.settings = replace(self._gac.settings, c_low=cap)

    def summary(self) -> dict[str, Any]:
        """Share of steps in each regime of the control, and what the autopilot decided."""
        counts = dict(self._gac.counts) if self._gac is not None else {}
        steps = sum(counts.values()) or 1
        return {
            "regimes": {regime: count / steps for regime, count in sorted(counts.items())},
            "longest_skips": self._gac.longest_skips if self._gac is not None else 0,
            "decisions": [
                {"step": d.step, "lever": d.lever, "before": d.before, "after": d.after, "reason": d.reason}
                for d in self.decisions
            ],
        }
