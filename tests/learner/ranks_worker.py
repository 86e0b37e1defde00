"""One of several processes that train on the same batches: `forked.begin(..., RANK, COUNT, FOLDER)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from offbeat.backends.alignment import attach_alignment
from offbeat.backends.learner_ranks import join
from offbeat.learner.checkpoint import stored_weights
from offbeat.learner.matmul import matmuls_in_bfloat16
from offbeat.learner.ranks import Ranks
from offbeat.learner.sharding import local, whole
from offbeat.learner.step import PolicyLearner
from offbeat.records import Batch
from tests.forked import arguments
from tests.learner.conftest import settings

GAC: dict[str, Any] = {"mode": "cap", "c_low": 0.05, "c_high": 0.9, "max_skips": 1}
CASES: dict[str, dict[str, Any]] = {
    "plain": {"micro_batch_tokens": 50},
    "gac": {"micro_batch_tokens": 50, "align": GAC},
    "one micro-batch": {"micro_batch_tokens": 8192, "updates_per_iteration": 2, "objective": {"name": "decoupled-ppo"}},
}
RECOMPUTED = {
    "micro_batch_tokens": 20, "align": GAC | {"lag_span": 1}, "recompute_activations": True,
}  # fmt: skip
SHARDED = {"recomputed, gac": RECOMPUTED, "one micro-batch": CASES["one micro-batch"]}
ROUNDED: dict[str, dict[str, Any]] = {}
"""Products so small that oneDNN leaves them to another library are not rounded, so micro-batches matter a little."""
if matmuls_in_bfloat16():
    ROUNDED["bfloat16"] = {"micro_batch_tokens": 50, "matmul_precision": "bfloat16"}
FSDP2 = {"processes": 2, "sharding": "fsdp2"}
FEW = 2
"""Steps of the rounded ones."""
HALF = 10
"""Steps after which a learner is saved and another goes on."""


def learner_of(model: Path, case: dict[str, Any], ranks: Ranks | None = None) -> PolicyLearner:
    chosen = settings(**case)
    return PolicyLearner(
        model, PolicyLearner.open(model, settings()).policy, chosen, attach=attach_alignment, ranks=ranks
    )


def go_on(learner: PolicyLearner, batches: list[Batch]) -> dict[str, Any]:
    """Reports and final parameters."""
    reports = [msgspec.to_builtins(learner.step(batch)) for batch in batches]
    held = list(learner.policy.model.parameters())
    return {
        "reports": reports,
        "parameters": torch.cat([whole(p).flatten() for p in held]).tolist(),
        "held": sum(local(p).numel() for p in held),
        "state": sum(local(t).numel() for entry in learner.optimizer.state.values() for t in entry.values()),
    }


def train(model: Path, batches: list[Batch], case: dict[str, Any], ranks: Ranks | None = None) -> dict[str, Any]:
    return go_on(learner_of(model, case, ranks), batches)


def resumed(
    model: Path, directory: Path, batches: list[Batch], case: dict[str, Any], ranks: Ranks | None = None
) -> dict[str, Any]:
    learner = PolicyLearner.restore(
        model, directory, settings(**case), attach=attach_alignment, ranks=ranks,
        stored=lambda version: stored_weights(model / "model.safetensors") if version == 0 else None,
    )  # fmt: skip
    return go_on(learner, batches[learner.version :])


def saved_half_way(
    model: Path, directory: Path, batches: list[Batch], case: dict[str, Any], ranks: Ranks | None = None
) -> dict[str, Any]:
    """Save in `directory` after half of the batches, export beside it, go on, and score something at the end."""
    learner = learner_of(model, case, ranks)
    go_on(learner, batches[:HALF])
    digest = learner.save(directory)
    learner.export(directory.with_suffix(".model"))
    made = go_on(learner, batches[HALF:])
    return made | {"digest": digest, "scores": learner.score((3, 4), (5, 6, 7))}


def main(rank: int, count: int, folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = join(rank, count, folder / "meeting")
    model = folder / "model"
    batches = msgspec.msgpack.decode((folder / "batches").read_bytes(), type=list[Batch])
    last = RECOMPUTED | FSDP2
    made = {case: train(model, batches, CASES[case], ranks) for case in CASES}
    made |= {f"fsdp2 {case}": train(model, batches, SHARDED[case] | FSDP2, ranks) for case in SHARDED}
    for case, chosen in ROUNDED.items():
        made[case] = train(model, batches[:FEW], chosen, ranks)
        made[f"fsdp2 {case}"] = train(model, batches[:FEW], chosen | FSDP2, ranks)
    made["saved"] = saved_half_way(model, folder / "by-two", batches, last, ranks)
    made["resumed"] = resumed(model, folder / "by-two", batches, last, ranks)
    made["taken over"] = resumed(model, folder / "by-one", batches, last, ranks)
    (folder / f"made-{rank}.json").write_bytes(msgspec.json.encode(made))
    dist.destroy_process_group()


if __name__ == "__main__":
    rank, count, folder = arguments()
    main(int(rank), int(count), Path(folder))
