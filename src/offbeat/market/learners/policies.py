"""Learnt policies, read back from a run's directory: noise-free prices for a decision, for any diagnostic that
plays them.

A policy has no memory of its own; everything it knows is in the decision. Needs torch, knows no training.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from offbeat.errors import RunDirectoryError
from offbeat.market.course import rows_of
from offbeat.market.learners.build import build
from offbeat.market.learners.observation import observation, price
from offbeat.market.learners.runfile import part_file, read_head
from offbeat.market.learners.settings import study_from
from offbeat.market.market import Decision
from offbeat.market.rules import rule

Array = NDArray[np.float64]


class Policies:
    """The policies of R runs of n firms, rules included. `policy(run)` is a `Policy` for every firm of the market."""

    def __init__(self, directory: Path) -> None:
        head = read_head(directory)
        self.study = study_from(head["settings"])
        self.box = (float(head["box"][0]), float(head["box"][1]))
        self.learning, self.count = self.study.learning, len(self.study.runs)
        parts = self.study.run.parts
        tensors: dict[str, Tensor] = {}
        for part in range(parts):
            file = part_file(directory, part)
            try:
                with safe_open(str(file), framework="pt") as saved:
                    for name in saved.keys():  # noqa: SIM118
                        if name.startswith("policy."):
                            self._place(tensors, name.removeprefix("policy."), saved.get_tensor(name), part, parts)
            except FileNotFoundError:
                raise RunDirectoryError(f"{directory}: no policy yet; let the first window end") from None
            except (OSError, SafetensorError) as error:
                raise RunDirectoryError(f"{file}: damaged ({error})") from None
        self._tensors = tensors

    def _place(self, whole: dict[str, Tensor], name: str, piece: Tensor, part: int, parts: int) -> None:
        inner = piece.shape[1:]
        whole.setdefault(name, torch.zeros(self.learning, self.count, *inner, dtype=piece.dtype))
        whole[name][:, part::parts] = piece.view(self.learning, -1, *inner)

    def policy(self, run: int | NDArray[np.intp]) -> Callable[[Decision], Array]:
        """Prices of run `run` in every market, or of runs (M,), one a market."""
        chosen = np.atleast_1d(np.asarray(run, dtype=np.intp))
        if chosen.min() < 0 or chosen.max() >= self.count:
            raise RunDirectoryError(f"run {int(chosen.max())}: there are runs 0 to {self.count - 1}")
        learner = build(self.study, [0] * len(chosen), np.ones(len(chosen)))
        at = torch.from_numpy(chosen)
        for name, tensor in learner.policy().items():
            tensor.copy_(self._tensors[name][:, at].flatten(0, 1))
        alone = len(chosen) == 1
        rival = self.study.market.rival
        others = None if rival is None else rule(rival, self.study.benchmark(), self.box, self.study.run.seed)

        def learnt(decision: Decision) -> Array:
            seen, firm = observation(decision, self.box, self.study.market.observe), torch.from_numpy(decision.firm)
            if alone:
                every = learner.quiet(seen.expand(self.learning, *seen.shape))
                return price(every[firm, torch.arange(len(decision))], self.box)
            agents = firm * len(chosen) + torch.from_numpy(decision.market)
            sight = torch.zeros(learner.agents, 1, seen.shape[1])
            sight[agents, 0] = seen
            return price(learner.quiet(sight)[agents, 0], self.box)

        def prices(decision: Decision) -> Array:
            learns = decision.firm < self.learning
            if others is None or learns.all():
                return learnt(decision)
            found = np.empty(len(decision))
            for rows, policy in ((np.flatnonzero(learns), learnt), (np.flatnonzero(~learns), others)):
                if len(rows):
                    found[rows] = policy(rows_of(decision, rows))
            return found

        return prices


def load_policies(directory: Path) -> Policies:
    """The policies of the last checkpoint of all parts. Raises RunDirectoryError."""
    return Policies(directory)
