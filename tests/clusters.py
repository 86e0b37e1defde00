"""A Ray cluster of several nodes on this machine, started once for all tests that ask for it, and its workers."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from offbeat.testing.subject import workers_of

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # or the tests beside them starve Ray's workers
ON_CLUSTER = pytest.mark.xdist_group("cluster")
"""One worker of the test session has the cluster."""
WATCHFUL = {"health_check_period_ms": 500, "health_check_timeout_ms": 500, "health_check_failure_threshold": 3}
"""So that Ray notices soon that a node is gone."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """ray.cluster_utils.Cluster: a head for the driver, the learner and one lane more, and a node for a lane."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=node(2) | {"_system_config": WATCHFUL})
    made.add_node(**node(1))
    yield made
    importlib.import_module("ray").shutdown()
    made.shutdown()


def node(cpus: int) -> dict[str, Any]:
    return {
        "num_cpus": cpus,
        "object_store_memory": 100 * 2**20,
        "include_dashboard": False,
        "include_log_monitor": False,
    }


def actors(cluster: Any) -> list[psutil.Process]:
    """Lanes and learners that run on a cluster."""
    raylets = [node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()]
    children = [child for pid in raylets if psutil.pid_exists(pid) for child in psutil.Process(pid).children()]
    return [child for child in children if " ".join(child.cmdline()).startswith("ray::Host")]


def worker_beside(actor: psutil.Process) -> tuple[str, psutil.Process]:
    """Kind and process of the worker that an actor speaks for."""
    [found] = [(kind, worker) for kind in ("rollout", "learner") for worker in workers_of(actor.pid, kind)]
    return found
