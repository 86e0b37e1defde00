"""A part of a run between memory and disk: everything of a `Training` in one file, written whole or not at all.

Names in the file: `trace.*` what happened, `policy.*` what was learnt, `state.*` what is needed to go on. A
finished part drops `state.*`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from offbeat.errors import RunDirectoryError
from offbeat.market.learners.runfile import part_file
from offbeat.market.learners.training import Training


@dataclass(frozen=True)
class Spent:
    """Seconds on the clock and of the processor that a part's training took."""

    seconds: float
    processor: float


def save(training: Training, directory: Path, spent: Spent) -> None:
    """Write the part after a window. `spent`: in all sessions so far."""
    held: dict[str, Tensor] = {}
    for name, windows in training.trace.items():
        held[f"trace.{name}"] = torch.from_numpy(np.stack(windows))
    for name, tensor in training.learner.policy().items():
        held[f"policy.{name}"] = tensor.detach().contiguous().clone()
    if not training.over:
        state = training.learner.state()
        state["time"] = torch.from_numpy(training.time)
        state["replay.count"] = torch.from_numpy(training.replay.count)
        used = int(min(training.replay.count.max(), training.replay.capacity))
        state["replay.rows"] = training.replay.rows[:, :used]
        held |= {f"state.{name}": tensor.contiguous().clone() for name, tensor in state.items()}
    file = part_file(directory, training.part)
    fresh = file.with_name(file.name + ".part")
    told = {"seconds": f"{spent.seconds:.3f}", "processor_seconds": f"{spent.processor:.3f}"}
    save_file(held, str(fresh), {"window": str(training.window)} | told)
    with fresh.open("rb+") as written:
        os.fsync(written.fileno())
    fresh.replace(file)


def load(training: Training, directory: Path) -> Spent:
    """Bring a fresh `training` to where its part's file is; what was spent so far. Raises RunDirectoryError."""
    file = part_file(directory, training.part)
    if not file.exists():
        return Spent(0.0, 0.0)
    try:
        with safe_open(str(file), framework="pt") as saved:
            meta = saved.metadata() or {}
            held = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118
        window = int(meta["window"])
        spent = Spent(float(meta["seconds"]), float(meta["processor_seconds"]))
        for name in training.trace:
            training.trace[name] = list(held[f"trace.{name}"].numpy())
        training.window = window
        if training.over:
            return spent
        state = {name.removeprefix("state."): t for name, t in held.items() if name.startswith("state.")}
        training.time = state["time"].numpy().copy()
        training.replay.count = state["replay.count"].numpy().copy()
        rows = state["replay.rows"]
        training.replay.rows[:, : rows.shape[1]] = rows
        training.learner.restore(state)
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise RunDirectoryError(f"{file}: cannot be resumed ({error}); begin anew with another --out") from None
    return spent
