"""One of two processes that train the same model sharded or replicated; also the same training in one process:
`forked.begin(..., RANK, PORT, OUT)`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from offbeat.align import GAC
from tests.forked import arguments

STEPS = 7
CASES: dict[str, dict[str, Any]] = {
    "observe": {"mode": "observe", "lags": (1, 2)},
    "cap": {"mode": "cap", "c_low": 0.1, "c_high": 0.9, "lags": (2,)},
    "orth-applied": {"mode": "orth", "c_low": 0.05, "c_high": 0.2, "reference": "applied", "max_skips": 1},
    "cap-clipped": {"mode": "cap", "c_low": 0.1, "c_high": 1.0, "max_norm": 0.1, "history": "bfloat16"},
    "shrink": {"mode": "orth", "c_low": 0.1, "c_high": 1.0, "direction": "none"},
}
Wrap = Callable[[nn.Module], nn.Module]


def build() -> nn.Module:
    """Sizes that two processes cannot share evenly."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1, bias=False))


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 6, generator=generator)
    return x, x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(8, 1, generator=generator)


def train(case: str, wrap: Wrap = lambda model: model, broken: int | None = None, resumed: str = "") -> dict[str, Any]:
    """Steps and final parameters. In step `broken` the last process has a gradient that is not finite."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    model = wrap(build())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    gac = GAC(optimizer, **CASES[case])
    steps = []
    for number in range(STEPS):
        optimizer.zero_grad()
        x, y = (part.chunk(world)[rank] for part in batch(number))
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        if number == broken and rank == world - 1:
            last = next(model.parameters())
            (last.grad.to_local() if isinstance(last.grad, DTensor) else last.grad).fill_(float("nan"))
        before = [whole(p) for p in model.parameters()]
        optimizer.step()
        if number == broken:  # what a gradient scaler would have prevented
            for parameter, value in zip(model.parameters(), before, strict=True):
                refill(parameter, value)
            for entry in optimizer.state.values():
                for key in ("exp_avg", "exp_avg_sq"):
                    (entry[key].to_local() if isinstance(entry[key], DTensor) else entry[key]).zero_()
        steps.append(asdict(gac.last))
        if resumed and number == STEPS // 2:
            gac = again(resumed, model, optimizer, gac, case)
    return {
        "steps": steps,
        "counts": dict(gac.counts),
        "parameters": [whole(p).flatten().tolist() for p in model.parameters()],
    }


def again(how: str, model: nn.Module, optimizer: torch.optim.Optimizer, gac: GAC, case: str) -> GAC:
    """Another GAC in its place, with its state: the shards as they are, or gathered and shared out again."""
    state = gac.state_dict()
    if how == "gathered":
        options = StateDictOptions(full_state_dict=True)
        groups = get_optimizer_state_dict(model, optimizer, options=options)["param_groups"]
        box = [groups[0]["align_state"]]
        dist.broadcast_object_list(box, src=0)
        state = box[0]
        assert not any(isinstance(t, DTensor) for entry in state["gradients"] for t in entry["tensors"])
    gac.detach()
    other = GAC(optimizer, **CASES[case])
    other.load_state_dict(state)
    return other


def whole(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def refill(parameter: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        if isinstance(parameter, DTensor):
            value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
        parameter.copy_(value)


def sharded(*shape: int) -> Wrap:
    """FSDP2 on a mesh; (2,) shards, (2, 1) replicates."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])

    def wrap(model: nn.Module) -> nn.Module:
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    return wrap


def main(rank: int, port: int, out: Path) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    ways: dict[str, Wrap] = {"ddp": DistributedDataParallel, "fsdp2": sharded(2), "hsdp": sharded(2, 1)}
    made = {f"{way}/{case}": train(case, wrap) for way, wrap in ways.items() for case in CASES}
    made["fsdp2/broken"] = train("cap", ways["fsdp2"], broken=2)
    made["fsdp2/restored"] = train("cap", ways["fsdp2"], resumed="sharded")
    made["fsdp2/gathered"] = train("cap", ways["fsdp2"], resumed="gathered")
    out.write_text(json.dumps(made))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    rank, port, out = arguments()
    main(int(rank), int(port), Path(out))
