"""Small clusters for tests: everything costs nothing unless it is named."""

from __future__ import annotations

from typing import Any

from offbeat.sim.cluster import Cluster, cluster_from


def cluster(**values: Any) -> Cluster:
    """Two lanes of one accelerator beside two that train, 1 s a token, 10 s a batch of 16 = 8 groups of 2."""
    data: dict[str, Any] = {
        "accelerators": 4,
        "slots": 64,
        "decode": {"floor_seconds": 1.0},
        "training": {"fixed_seconds": 10.0},
        "prefill": {"tokens_per_second": 1e12},
        "lengths": {"kind": "lognormal", "median": 20, "sigma": 1.0, "cap": 200},
        "schedule": {"group_size": 2, "train_batch_size": 16, "max_staleness": 2, "rebalance_seconds": 5.0},
        "run": {"iterations": 12, "warmup": 3},
    }
    for key, value in values.items():
        data[key] = data.get(key, {}) | value if isinstance(value, dict) else value
    return cluster_from(data)
