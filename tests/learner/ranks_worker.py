"""One of several processes that train on the same batches.

python -m tests.learner.ranks_worker RANK COUNT FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

from offbeat.backends.alignment import attach_alignment
from offbeat.backends.learner_ranks import join
from offbeat.learner.ranks import Ranks
from offbeat.learner.step import PolicyLearner
from offbeat.records import Batch
from tests.learner.conftest import settings

CASES: dict[str, dict[str, Any]] = {
    "plain": {"micro_batch_tokens": 30},
    "gac": {"micro_batch_tokens": 30, "align": {"mode": "cap", "c_low": 0.05, "c_high": 0.9, "max_skips": 1}},
    "one micro-batch": {"micro_batch_tokens": 8192, "updates_per_iteration": 2, "objective": {"name": "decoupled-ppo"}},
}


def train(model: Path, batches: list[Batch], case: str, ranks: Ranks | None = None) -> dict[str, Any]:
    """Reports and final parameters."""
    chosen = settings(**CASES[case])
    learner = PolicyLearner(
        model, PolicyLearner.open(model, settings()).policy, chosen, attach=attach_alignment, ranks=ranks
    )
    reports = [msgspec.to_builtins(learner.step(batch)) for batch in batches]
    parameters = torch.cat([p.detach().flatten() for p in learner.policy.model.parameters()])
    return {"reports": reports, "parameters": parameters.tolist()}


def main(rank: int, count: int, folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = join(rank, count, folder / "meeting")
    batches = msgspec.msgpack.decode((folder / "batches").read_bytes(), type=list[Batch])
    made = {case: train(folder / "model", batches, case, ranks) for case in CASES}
    (folder / f"made-{rank}.json").write_bytes(msgspec.json.encode(made))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
