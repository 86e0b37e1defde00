"""Short random runs in which lanes and the learner die and return: one seed, one cluster, one fault schedule.

Shapes are small and failures frequent, so that a thousand runs take seconds and meet every order of events.
"""

from __future__ import annotations

import random
from typing import Any

from offbeat.eventtime.streams import stream_seed
from offbeat.sim.cluster import Cluster, cluster_from

SCHEDULES = (
    "multi-version",
    "multi-version",
    "multi-version",
    "sync",
    "one-step-off",
    "partial",
    "in-flight",
    "repack",
)


def trial(seed: int) -> tuple[Cluster, str]:
    """The cluster and the schedule of a seed."""
    rng = random.Random(stream_seed(seed, "trial"))
    schedule = rng.choice(SCHEDULES)
    size, bound = rng.choice((2, 2, 4)), rng.randrange(4)
    batch = size * rng.choice((2, 4))
    lanes = rng.choice((1, 2, 3, 6)) if schedule != "repack" else rng.choice((2, 3, 6))
    cap = rng.choice((40, 150))
    data: dict[str, Any] = {
        "accelerators": 2 * lanes,
        "takes_turns": False,
        "slots": rng.choice((2, 4, 8)),
        "cache_tokens": rng.choice((None, None, 2 * cap + 10)),
        "decode": {"floor_seconds": 0.5, "per_sequence_seconds": 0.05},
        "training": {"fixed_seconds": rng.choice((1.0, 20.0, 90.0))},
        "publish": {"kind": rng.choice(("peer", "broadcast", "relay")), "setup_seconds": rng.choice((0.0, 3.0))},
        "transfer": {"setup_seconds": rng.choice((0.0, 5.0))},
        "scoring": {"seconds": rng.choice((0.0, 2.0))},
        "tools": {"turns": rng.choice((1, 1, 3)), "seconds": 5.0},
        "lengths": {"kind": "pareto", "minimum": 4, "alpha": 1.1, "cap": cap, "prompt_tokens": 3},
        "faults": {
            "lane_hours": rng.choice((0.1, 0.3)),
            "learner_hours": rng.choice((None, 0.05)),
            "return_seconds": rng.choice((1.0, 30.0)),
            "score_failures": rng.choice((0.0, 0.02)),
            "slow_share": 0.3,
            "slow_factor": 2.0,
        },
        "schedule": {
            "group_size": size,
            "train_batch_size": batch,
            "max_staleness": bound,
            "max_versions": rng.choice((1, 1, bound + 1)),
            "over_dispatch": rng.choice((1.0, 1.5, 3.0)),
            "migration": rng.choice(("cache", "prefill", "off")),
            "legacy_fill": rng.random() < 0.7,
            "at_bound": rng.choice(("drain", "drain", "evict")),
            "rebalance_seconds": rng.choice((5.0, 40.0)),
        },
        "run": {"iterations": 5, "warmup": 0, "seed": seed},
    }
    return cluster_from(data), schedule
